"""Stop strings, found across token borders while the text streams.

Law: text is released as soon as no stop string can begin in it any more; what is held back is the longest
suffix that begins some stop string. The match that is complete first wins (of two complete at once, the
longer), because that is the token generation stops at; from where it begins nothing is ever released, or from
where it ends, if it is to be shown.
"""

from collections.abc import Iterable

from ganglion.core.events import Piece


class StopMatcher:
    """Watches one answer for its stop strings; time is linear in the text, whatever the strings."""

    __slots__ = ("_automaton", "_held", "_held_length", "_is_head_cut", "_is_shown", "_node", "matched")

    def __init__(self, strings: tuple[str, ...], *, is_shown: bool = False) -> None:
        wanted = tuple(string for string in strings if string)
        self._automaton = _Automaton(wanted) if wanted else None
        self._node = 0
        self._is_shown = is_shown
        self._held: list[Piece] = []
        self._held_length = 0
        self._is_head_cut = False
        """Whether the first held piece is the rest of one whose beginning was released."""
        self.matched: str | None = None

    def feed(self, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
        """Take more text and release what is safe; after a match nothing is."""
        automaton = self._automaton
        if automaton is None:
            return pieces
        released: list[Piece] = []
        for piece in pieces:
            if self.matched is not None:
                break
            if not self._held and automaton.firsts.isdisjoint(piece.text):
                released.append(piece)
            else:
                released.extend(self._scan(automaton, piece))
        return tuple(released)

    def flush(self) -> tuple[Piece, ...]:
        """Release what was held, because generation ended otherwise."""
        released = tuple(self._release(self._held_length))
        self._node = 0
        return released

    def _scan(self, automaton: "_Automaton", piece: Piece) -> list[Piece]:
        before = self._held_length
        self._held.append(piece)
        self._held_length += len(piece.text)
        node = self._node
        for count, character in enumerate(piece.text, start=before + 1):
            node = automaton.step(node, character)
            match = automaton.matches[node]
            if match is not None:
                self.matched = match
                return self._cut(count if self._is_shown else count - len(match))
        self._node = node
        return self._release(self._held_length - automaton.depths[node])

    def _release(self, count: int) -> list[Piece]:
        released: list[Piece] = []
        taken = 0
        for piece in self._held:
            length = len(piece.text)
            if length > count:
                break
            released.append(piece)
            count -= length
            self._held_length -= length
            self._is_head_cut = False
            taken += 1
        del self._held[:taken]
        # A special piece goes out whole or not at all: half a control token's name is nobody's marker.
        if count and not self._held[0].is_special:
            head = self._held[0]
            released.append(Piece(head.text[:count], ()))
            self._held[0] = Piece(head.text[count:], head.tokens)
            self._held_length -= count
            self._is_head_cut = True
        return released

    def _cut(self, count: int) -> list[Piece]:
        """Release the first `count` held characters for good and drop the rest.

        The tokens of the piece that the match begins in are kept if any of its text was ever shown.
        """
        released: list[Piece] = []
        is_cut = self._is_head_cut
        for piece in self._held:
            if len(piece.text) > count:
                if count or is_cut:
                    released.append(Piece(piece.text[:count], piece.tokens, piece.is_special))
                break
            released.append(piece)
            count -= len(piece.text)
            is_cut = False
        self._held.clear()
        self._held_length = 0
        return released


class _Automaton:
    """Aho and Corasick's automaton; a node's depth is how much of the text's end begins some string."""

    __slots__ = ("_failures", "_next", "depths", "firsts", "matches")

    def __init__(self, strings: Iterable[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._failures = [0]
        self.depths = [0]
        self.matches: list[str | None] = [None]
        for string in strings:
            self._add(string)
        self.firsts = frozenset(self._next[0])
        self._link()

    def step(self, node: int, character: str) -> int:
        """The node after one more character."""
        following = self._next
        while node and character not in following[node]:
            node = self._failures[node]
        return following[node].get(character, 0)

    def _add(self, string: str) -> None:
        node = 0
        for character in string:
            after = self._next[node].get(character)
            if after is None:
                after = len(self._next)
                self._next[node][character] = after
                self._next.append({})
                self._failures.append(0)
                self.depths.append(self.depths[node] + 1)
                self.matches.append(None)
            node = after
        self.matches[node] = string

    def _link(self) -> None:
        """Point every node at the longest proper suffix that is a node too, nearest to the root first."""
        queue = list(self._next[0].values())
        for node in queue:
            for character, child in self._next[node].items():
                failure = self.step(self._failures[node], character)
                self._failures[child] = failure
                if self.matches[child] is None:
                    self.matches[child] = self.matches[failure]
                queue.append(child)
