"""Reads and steers the residual stream inside the processes that compute for vLLM.

`ResidualExtension` is mixed into vLLM's worker class (`worker_extension_cls`); its methods are called through
`collective_rpc`. Hooks stand behind the layers that the concepts name, and only once concepts are loaded.
Law: a pass in which nobody asks for anything costs a look at a variable per hooked layer. Only dot products
leave the device; what was read is kept until it is taken or forgotten.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import torch
from vllm.distributed import get_tensor_model_parallel_rank

from ganglion.core.engine import ReadoutManifest
from ganglion.engines.concepts.pack import ConceptBook
from ganglion.engines.concepts.steering import Steerer
from ganglion.engines.vllm.worker.step_rows import ResidualWishes, RowSpan, StepRows, rows_of, wishes_in

_MOST_TAKEN_BYTES: Final = 16 * 2**20
"""What one question hands out of a request; the rest is asked for again."""

_TakenSpan = tuple[int, int, bytes]
"""First position, how many, and float32 `[positions, layers of this process, concepts]`."""


class ResidualExtension:
    """What vLLM's worker class learns; each method runs in every process of the engine."""

    model_runner: Any

    def ganglion_load_concepts(
        self,
        concepts: list[str],
        layers: list[int],
        vectors: list[bytes],
        spans: list[list[float]],
        hidden: int,
    ) -> tuple[list[int], str]:
        """Stand behind the layers that are computed here; says which, or why that cannot be."""
        shape = len(concepts), hidden
        book = ConceptBook(
            ReadoutManifest(tuple(concepts), tuple(layers)),
            tuple(np.frombuffer(each, np.float32).reshape(shape) for each in vectors),
            tuple(np.asarray(each, np.float32) for each in spans),
        )
        try:
            self._ganglion_hooks = ResidualHooks(self.model_runner, book)
        except CannotHook as error:
            return [], str(error)
        return self._ganglion_hooks.layers, ""

    def ganglion_take_readouts(self, keys: list[int], forgotten: list[int]) -> list[list[_TakenSpan]]:
        """What was read for each of some requests since the last time; of others it is dropped."""
        return self._ganglion_hooks.take(keys, forgotten)


class CannotHook(Exception):
    """The model's residual stream cannot be reached."""


class ResidualHooks:
    """The hooks in one process: what they follow, and what they have read."""

    def __init__(self, runner: Any, concepts: ConceptBook) -> None:
        self._runner = runner
        self._concepts = concepts
        self._device = runner.device
        model = runner.get_model()
        blocks = _decoder_layers(model, runner.model_config.get_total_num_hidden_layers())
        self._steerer = Steerer(concepts, len(blocks))
        places = [
            (number, layer)
            for number, layer in enumerate(concepts.manifest.layers)
            if type(blocks[layer]).__name__ != "PPMissingLayer"
        ]
        self.layers = [layer for _, layer in places]
        """The layers that are computed here, in rising order."""
        self._reads = get_tensor_model_parallel_rank() == 0
        """Whether this process reads: each of those that share a layer has the whole stream."""
        self._vectors = [
            torch.from_numpy(np.ascontiguousarray(concepts.vectors[number].T)).to(self._device)
            for number, _ in places
        ]
        self._pushes: dict[str, torch.Tensor] = {}
        """By variant, what is added after each layer that is computed here: `[layers, hidden]`."""
        self._followed: dict[str, ResidualWishes] = {}
        self._scheduled: Any = None
        self._step: _Pass | None = None
        self._computed: deque[tuple[list[RowSpan], torch.Tensor, Any]] = deque()
        self._found: dict[int, deque[tuple[int, np.ndarray]]] = {}
        for place, layer in enumerate(self.layers):
            blocks[layer].register_forward_hook(self._behind(place))
        model.register_forward_pre_hook(lambda *_: self._begin())
        model.register_forward_hook(lambda *_: self._finish())
        self._execute = runner.execute_model
        runner.execute_model = self._execute_model

    # What is computed

    def _execute_model(self, scheduler_output: Any, *arguments: Any, **named: Any) -> Any:
        self._follow(scheduler_output)
        if not self._followed.keys().isdisjoint(scheduler_output.num_scheduled_tokens):
            self._scheduled = scheduler_output.num_scheduled_tokens
        try:
            return self._execute(scheduler_output, *arguments, **named)
        finally:
            self._scheduled = self._step = None

    def _follow(self, scheduler_output: Any) -> None:
        for name in scheduler_output.finished_req_ids:
            self._followed.pop(name, None)
        for request in scheduler_output.scheduled_new_reqs:
            parameters = request.sampling_params
            wishes = wishes_in(parameters.extra_args) if parameters is not None else None
            if wishes is not None:
                self._followed[request.req_id] = wishes

    def _begin(self) -> None:
        """The batch is put together: see which of its rows somebody asked for."""
        if self._scheduled is None:
            return
        batch, counts = self._runner.input_batch, self._scheduled
        starts = batch.num_computed_tokens_cpu
        scheduled = [(name, int(starts[at]), counts[name]) for at, name in enumerate(batch.req_ids)]
        self._scheduled = None
        rows = rows_of(scheduled, self._followed)
        if not rows.is_empty:
            self._step = self._planned(rows)

    def _planned(self, rows: StepRows) -> "_Pass":
        read = rows.read_rows if self._reads else []
        steered = [row for _, span in rows.steered for row in range(span.row, span.row + span.count)]
        pushes = [(self._push(variant), span.count) for variant, span in rows.steered]
        return _Pass(
            rows.read if read else [],
            torch.tensor(read, dtype=torch.long, device=self._device),
            torch.empty(
                (len(read), len(self.layers), len(self._concepts.manifest.concepts)),
                dtype=torch.float32,
                device=self._device,
            ),
            torch.tensor(steered, dtype=torch.long, device=self._device),
            pushes,
        )

    def _push(self, variant: str) -> torch.Tensor:
        found = self._pushes.get(variant)
        if found is None:
            dense = self._steerer.vectors(variant)
            # Nothing is added after layer 0, in any engine.
            own = [dense[layer - 1] if layer > 0 else np.zeros_like(dense[0]) for layer in self.layers]
            found = torch.from_numpy(np.stack(own)).to(self._device)
            while len(self._pushes) >= _MOST_VARIANTS:
                self._pushes.pop(next(iter(self._pushes)))
        else:
            del self._pushes[variant]
        self._pushes[variant] = found
        return found

    def _behind(self, place: int) -> Callable[..., None]:
        def after_layer(_module: Any, _arguments: Any, output: Any) -> None:
            step = self._step
            if step is None:
                return
            hidden, residual = _parts_of(output)
            if step.pushes:
                # Into what the layer adds and not into the stream: the smaller of the two is rounded less.
                rows = step.steered
                pushed = torch.cat([each[place].expand(count, -1) for each, count in step.pushes])
                moved = hidden.index_select(0, rows).float() + pushed
                hidden.index_copy_(0, rows, moved.to(hidden.dtype))
            if step.read:
                stream = hidden.index_select(0, step.rows).float()
                if residual is not None:
                    stream += residual.index_select(0, step.rows).float()
                step.values[:, place] = stream @ self._vectors[place]

        return after_layer

    def _finish(self) -> None:
        step, self._step = self._step, None
        if step is None or not step.read:
            return
        values, copied = step.values, None
        if values.is_cuda:
            values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            values.copy_(step.values, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
        self._computed.append((step.read, values, copied))

    # What was read

    def take(self, keys: Iterable[int], forgotten: Iterable[int]) -> list[list[_TakenSpan]]:
        """What was read for each of some requests since the last time, a bounded amount of each."""
        self._sort()
        for key in forgotten:
            self._found.pop(key, None)
        return [self._taken(key) for key in keys]

    def _sort(self) -> None:
        while self._computed:
            spans, values, copied = self._computed.popleft()
            if copied is not None:
                copied.synchronize()
            rows = values.numpy()
            at = 0
            for span in spans:
                found = self._found.setdefault(span.key, deque())
                found.append((span.position, rows[at : at + span.count]))
                at += span.count

    def _taken(self, key: int) -> list[_TakenSpan]:
        found = self._found.get(key)
        taken: list[_TakenSpan] = []
        room = _MOST_TAKEN_BYTES
        while found and (room > 0 or not taken):
            position, rows = found.popleft()
            taken.append((position, len(rows), rows.tobytes()))
            room -= rows.nbytes
        return taken


class _Pass:
    """What is read and steered in one forward pass."""

    __slots__ = ("pushes", "read", "rows", "steered", "values")

    def __init__(
        self,
        read: list[RowSpan],
        rows: torch.Tensor,
        values: torch.Tensor,
        steered: torch.Tensor,
        pushes: Sequence[tuple[torch.Tensor, int]],
    ) -> None:
        self.read = read
        self.rows = rows
        self.values = values
        """`[rows, layers, concepts]`"""
        self.steered = steered
        self.pushes = pushes


_MOST_VARIANTS: Final = 64
"""Ways of steering whose vectors are kept: each is a row of the stream for each layer."""


def _parts_of(output: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What a layer hands on: the stream itself, or what it adds beside the stream before it."""
    if isinstance(output, torch.Tensor):
        return output, None
    hidden, residual = output
    return hidden, residual


def _decoder_layers(model: Any, count: int) -> Any:
    """The layers of the language model, in order."""
    inner = model.get_language_model() if hasattr(model, "get_language_model") else model
    lists = [each for each in inner.modules() if isinstance(each, torch.nn.ModuleList) and len(each) == count]
    if len(lists) != 1:
        raise CannotHook(f"of {type(model).__name__}, {len(lists)} lists have its {count} layers")
    return lists[0]
