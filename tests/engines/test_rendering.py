"""A template can harm nothing but its own request."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from ganglion.core.errors import InvalidValue, Overloaded, ShuttingDown
from ganglion.core.request import ChatPrompt, JsonValue, Message
from ganglion.engines.rendering.renderer import Renderer
from ganglion.engines.text_engine import GENERIC_TEMPLATE
from support.embedded_model import kept_open
from support.handles import no_more_files
from support.waiting import until

HELLO = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


async def rendered(
    renderer: Renderer, source: str, content: str = "Hello", tenant: str = "", **arguments: JsonValue
) -> str:
    prompt = ChatPrompt((Message("user", content),), arguments)
    return await renderer.render(source, prompt, bos_token="<s>", eos_token="</s>", tenant=tenant)


@asynccontextmanager
async def opened(**limits: float) -> AsyncIterator[Renderer]:
    renderer = Renderer(**limits)  # type: ignore[arg-type]
    async with kept_open(renderer):
        yield renderer


def process_of(renderer: Renderer) -> int:
    (process,) = renderer.process_ids
    return process


def children_took_s() -> float:
    """Processor time of the children that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def is_running(process: int) -> bool:
    """Whether a process lives or is a zombie."""
    with suppress(ProcessLookupError):
        os.kill(process, 0)
        return True
    return False


async def test_a_child_that_is_ended_twice_keeps_its_exit_status_for_whoever_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    polled: list[int] = []

    def poll(process: subprocess.Popen[bytes]) -> int | None:
        polled.append(process.pid)
        return process.returncode

    async with opened() as renderer:
        first = process_of(renderer)
        monkeypatch.setattr(subprocess.Popen, "poll", poll)
    assert not is_running(first)
    assert not polled, "it would have been told to nobody else"


def environment_of(process: int) -> bytes:
    return Path(f"/proc/{process}/environ").read_bytes()


def names_in(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


async def test_a_template_renders_in_a_child_that_stays() -> None:
    async with opened() as renderer:
        first = process_of(renderer)
        assert await rendered(renderer, GENERIC_TEMPLATE) == HELLO
        assert await rendered(renderer, GENERIC_TEMPLATE, "Hello") == HELLO
        assert process_of(renderer) == first
    assert not is_running(first)


async def test_a_renderer_that_was_not_opened_starts_with_its_first_template() -> None:
    renderer = Renderer()
    assert await rendered(renderer, GENERIC_TEMPLATE) == HELLO
    await renderer.close()


async def test_values_of_every_shape_reach_the_template() -> None:
    async with opened() as renderer:
        argument: JsonValue = {"a": [1, 2.5, None, True, "é\x00"]}
        assert await rendered(renderer, "{{ x | tojson }}", x=argument) == (
            '{"a": [1, 2.5, null, true, "é\\u0000"]}'
        )
        long = "é" * 1_000_000
        assert await rendered(renderer, "{{ messages[0].content }}", long) == long


async def test_a_refusal_arrives_in_the_words_of_the_template() -> None:
    async with opened() as renderer:
        with pytest.raises(InvalidValue, match="only users may speak") as refused:
            await rendered(renderer, "{{ raise_exception('only users may speak') }}")
        assert refused.value.param == "messages"
        with pytest.raises(InvalidValue, match="surrogate"):
            await rendered(renderer, r"{{ '\ud800' }}")
        with pytest.raises(InvalidValue, match="surrogate"):
            await rendered(renderer, GENERIC_TEMPLATE, "\ud800")


BOMBS = [
    "{{ 'a' * 10**9 }}",
    "{{ 'a' * 10**12 }}",
    "{{ ['a'] * 10**9 }}",
    "{{ ('a' * 10**6) | replace('a', 'b' * 10**6) }}",
    "{{ 'x' | center(10**10) }}",
    "{{ '%1000000000s' % 'x' }}",
    "{{ '{:>1000000000}'.format('x') }}",
    "{{ 9 ** (9 ** 9) }}",
    "{{ (10 ** 1000000) ** 100 }}",
    "{{ 2 ** (10 ** 10) }}",
    ENDLESS,
    ENDLESS.replace("{% endfor %}", "{{ a }}{% endfor %}", 1),
    "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set ns = namespace(s=[0]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% macro m(n) %}{% for i in range(9) %}{{ m(n - 1) if n }}{% endfor %}{% endmacro %}{{ m(20) }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% for i in [[]] recursive %}{{ loop([[]]) }}{% endfor %}",
    "{{ range(99999) | map('string') | join('x' * 99999) }}",
    "{{ range(99999) | batch(10**9, 'x') | list }}",
    "{{ (range(99999) | list) * 99999 }}",
    "{{ ('a' * 9999) | list | permutations }}{{ " + "(" * 3000 + ")" * 3000 + " }}",
    "{% if " + "not " * 20_000 + "true %}{% endif %}",
    "{{ " + "[" * 50_000 + "]" * 50_000 + " }}",
    "{{ ('a' * 10**7) | wordwrap(1) | wordwrap(1) | wordwrap(1) }}",
]


async def test_bombs_cost_their_own_request_an_error_and_the_next_one_nothing() -> None:
    async with opened(budget_s=0.4) as renderer:
        for bomb in BOMBS:
            before_s = children_took_s()
            with pytest.raises(InvalidValue):
                await rendered(renderer, bomb)
            assert children_took_s() - before_s < 2.0, bomb[:80]
            assert await rendered(renderer, GENERIC_TEMPLATE) == HELLO, bomb[:80]


INJECTIONS = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ '' | attr('__class__') }}",
    "{{ ''|attr('_'~'_class_'~'_') }}",
    r"{{ ''['\x5f\x5fclass\x5f\x5f'] }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '{0.__class__}'.format_map({'0': ''}) }}",
    "{{ '%(x)s' % {'x': ''.__class__} }}",
    "{{ [''] | map(attribute='__class__') | list }}",
    "{{ [{}] | selectattr('__class__') | list }}",
    "{{ [''] | groupby('__class__') | list }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ lipsum.__globals__['os'].popen('touch CANARY').read() }}",
    "{{ cycler.__init__.__globals__.os.popen('touch CANARY').read() }}",
    "{{ joiner.__init__.__globals__.os.environ }}",
    "{{ namespace.__init__.__globals__['sys'].modules['os'].environ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__closure__[0].cell_contents }}",
    "{{ strftime_now.__globals__['__builtins__']['open']('CANARY', 'w') }}",
    "{{ range.__class__.__base__ }}",
    "{{ messages[0].items.__self__.__class__ }}",
    "{{ config.items() }}{{ request.application.__globals__ }}",
    "{{ get_flashed_messages.__globals__.__builtins__.open('/etc/passwd').read() }}",
    "{% import 'os' as os %}{{ os.popen('touch CANARY') }}",
    "{% include '/etc/passwd' %}",
    "{% extends '/etc/passwd' %}",
    "{% for c in [].__class__.__base__.__subclasses__() %}{{ c }}{% endfor %}",
    "{% set x = joiner.__call__.__func__ %}{{ x.__code__ }}",
    "{{ (messages | first).__class__.__init__.__globals__ }}",
    "{{ messages.__reduce_ex__(2) }}",
    "{{ (loop or caller or varargs).__class__ }}",
    "{{ ((x for x in ()).gi_frame.f_globals) }}",
    "{% with a = namespace.__init__ %}{{ a.__code__.co_consts }}{% endwith %}",
]


async def test_injections_run_nothing_and_read_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GANGLION_SECRET", "hunter2")
    monkeypatch.chdir(tmp_path)
    async with opened() as renderer:
        for injection in INJECTIONS:
            try:
                text = await rendered(renderer, injection)
            except InvalidValue as refused:
                text = refused.message
            for leak in ("hunter2", "<class", "<function", "root:", "Popen", "environ({", "__builtins__'"):
                assert leak not in text, injection
        assert names_in(tmp_path) == []


async def test_the_child_sees_no_secret_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    async with opened() as renderer:
        assert b"hunter2" not in environment_of(process_of(renderer))


async def test_output_beyond_its_budget_is_refused_and_the_child_stays() -> None:
    async with opened(max_bytes=1000) as renderer:
        child = process_of(renderer)
        with pytest.raises(InvalidValue, match="more than 1000 bytes"):
            await rendered(renderer, "{{ 'a' * 1001 }}")
        assert await rendered(renderer, GENERIC_TEMPLATE) == HELLO
        assert process_of(renderer) == child


async def test_a_child_killed_while_idle_is_replaced() -> None:
    async with opened() as renderer:
        killed = process_of(renderer)
        os.kill(killed, signal.SIGKILL)
        assert await rendered(renderer, GENERIC_TEMPLATE) == HELLO
        assert process_of(renderer) != killed
        assert not is_running(killed)


async def test_a_child_killed_at_work_is_replaced_and_the_work_done_again() -> None:
    async with opened(budget_s=10) as renderer:
        killed = process_of(renderer)
        slow = "{% for a in range(1500) %}{% for b in range(1500) %}{% endfor %}{% endfor %}done"
        work = asyncio.create_task(rendered(renderer, slow))
        await asyncio.sleep(0.02)
        os.kill(killed, signal.SIGKILL)
        assert await work == "done"
        assert process_of(renderer) != killed


async def test_those_who_wait_behind_a_slow_template_are_served() -> None:
    async with opened(budget_s=0.4) as renderer:
        slow, *others = await asyncio.gather(
            rendered(renderer, ENDLESS),
            *(rendered(renderer, GENERIC_TEMPLATE) for _ in range(5)),
            return_exceptions=True,
        )
        assert isinstance(slow, InvalidValue)
        assert "in time" in slow.message
        assert others == [HELLO] * 5


async def test_a_cancelled_render_leaves_nothing_of_its_answer_behind() -> None:
    async with opened(budget_s=10) as renderer:
        killed = process_of(renderer)
        work = asyncio.create_task(rendered(renderer, ENDLESS))
        await asyncio.sleep(0.02)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert not is_running(killed)
        assert await rendered(renderer, GENERIC_TEMPLATE) == HELLO


async def test_closing_ends_the_running_render_and_refuses_more() -> None:
    renderer = Renderer(budget_s=10)
    await renderer.open()
    child = process_of(renderer)
    work = asyncio.create_task(rendered(renderer, ENDLESS))
    await asyncio.sleep(0.02)
    await renderer.close()
    with pytest.raises(ShuttingDown):
        await work
    with pytest.raises(ShuttingDown):
        await rendered(renderer, GENERIC_TEMPLATE)
    assert not is_running(child)
    await renderer.open()
    assert await rendered(renderer, GENERIC_TEMPLATE) == HELLO
    await renderer.close()


async def test_the_child_ignores_ctrl_c() -> None:
    async with opened() as renderer:
        child = process_of(renderer)
        os.kill(child, signal.SIGINT)
        assert await rendered(renderer, GENERIC_TEMPLATE) == HELLO
        assert process_of(renderer) == child


@pytest.mark.parametrize("source", [None, ENDLESS], ids=["idle", "at work"])
def test_the_child_dies_with_its_parent(source: str | None) -> None:
    parent = f"""
import asyncio, os
from ganglion.core.request import ChatPrompt
from ganglion.engines.rendering.renderer import Renderer

async def main():
    renderer = Renderer(budget_s=0.2)
    await renderer.open()
    print(renderer.process_ids[0], flush=True)
    if {source!r}:
        asyncio.ensure_future(renderer.render({source!r}, ChatPrompt(()), bos_token="", eos_token=""))
        await asyncio.sleep(0.05)
    os._exit(0)

asyncio.run(main())
"""
    printed = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=True)
    child = int(printed.stdout)
    deadline = time.monotonic() + 5
    # Its new parent may be slow to collect it; a zombie has ended too.
    while is_running(child) and "Z" not in Path(f"/proc/{child}/stat").read_text().rpartition(")")[2]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_child_imports_no_event_loop_and_no_engine() -> None:
    heavy = "asyncio|numpy|starlette|xllamacpp|cffi|uvicorn"
    code = (
        "import sys, ganglion.engines.rendering.template_child\n"
        f"print([name for name in '{heavy}'.split('|') if name in sys.modules])"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout == "[]\n"


async def test_a_busy_machine_is_not_the_templates_fault() -> None:
    async with opened(budget_s=0.5, wall_s=30) as renderer:
        child = process_of(renderer)
        os.kill(child, signal.SIGSTOP)
        work = asyncio.create_task(rendered(renderer, GENERIC_TEMPLATE))
        await asyncio.sleep(1.0)
        assert not work.done()
        os.kill(child, signal.SIGCONT)
        assert await work == HELLO
        assert process_of(renderer) == child


async def test_a_machine_that_does_not_get_to_it_says_when_to_come_back() -> None:
    async with opened(wall_s=0.3) as renderer:
        os.kill(process_of(renderer), signal.SIGSTOP)
        with pytest.raises(Overloaded) as refused:
            await rendered(renderer, GENERIC_TEMPLATE)
        assert refused.value.retry_after_s
        assert await rendered(renderer, GENERIC_TEMPLATE) == HELLO


async def test_a_child_that_cannot_be_started_now_is_no_fault_of_the_request() -> None:
    renderer = Renderer()
    with no_more_files(), pytest.raises(Overloaded) as refused:
        await rendered(renderer, GENERIC_TEMPLATE)
    assert refused.value.retry_after_s
    assert await rendered(renderer, GENERIC_TEMPLATE) == HELLO
    await renderer.close()


async def test_a_child_that_somebody_kills_again_and_again_is_our_fault() -> None:
    async with opened(budget_s=30) as renderer:
        work = asyncio.create_task(rendered(renderer, ENDLESS))
        killed: set[int] = set()
        while not work.done():
            await asyncio.sleep(0.05)
            for process in set(renderer.process_ids) - killed:
                killed.add(process)
                os.kill(process, signal.SIGKILL)
        with pytest.raises(Overloaded):
            await work
        assert len(killed) == 2


async def test_ten_hostile_callers_keep_no_other_tenant_from_its_turn() -> None:
    async with opened(budget_s=0.4) as renderer:
        ended = 0

        async def hostile() -> None:
            nonlocal ended
            while True:
                with suppress(InvalidValue):
                    await rendered(renderer, ENDLESS, tenant="hostile")
                ended += 1

        callers = [asyncio.create_task(hostile()) for _ in range(10)]
        await until(lambda: renderer._pool.room >= 3, 60)
        for _ in range(3):
            before = ended
            assert await rendered(renderer, GENERIC_TEMPLATE, tenant="neighbour") == HELLO
            assert ended - before <= 2, "the two that ran may end by chance; none is waited for"
        assert len(renderer.process_ids) <= 3
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
