"""The wires take every sampling parameter, each within the bounds that it is declared with."""

import msgspec
import pytest
from msgspec import inspect

from ganglion.core.errors import InvalidValue
from ganglion.core.sampling import PARAMS, SAMPLER_PARAMS, Param
from ganglion.wire.chat.schema import ChatBody
from ganglion.wire.completions.schema import CompletionBody
from ganglion.wire.decode import decode
from ganglion.wire.fields import SamplerFields, SamplingFields, sampling_of
from ganglion.wire.messages.schema import MessagesBody
from ganglion.wire.ollama.schema import OllamaOptions
from ganglion.wire.responses.schema import ResponsesBody

BOUNDED = {name: param for name, param in (PARAMS | SAMPLER_PARAMS).items() if param.low is not None}


def bounds(body: type[msgspec.Struct], name: str) -> tuple[object, object, object] | None:
    info = inspect.type_info(body)
    assert isinstance(info, inspect.StructType)
    field = next((each for each in info.fields if each.encode_name == name), None)
    if field is None:
        return None
    assert isinstance(field.type, inspect.UnionType)
    number = next(each for each in field.type.types if not isinstance(each, inspect.NoneType))
    if isinstance(number, inspect.LiteralType):
        return min(number.values), None, max(number.values)
    assert isinstance(number, inspect.IntType | inspect.FloatType)
    return number.ge, number.gt, number.le


def declared(param: Param) -> tuple[object, object, object]:
    return (None, param.low, param.high) if param.excludes_low else (param.low, None, param.high)


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("body", [ChatBody, CompletionBody, ResponsesBody, MessagesBody, OllamaOptions])
def test_a_field_has_the_bounds_of_its_parameter(body: type[msgspec.Struct], name: str) -> None:
    param = BOUNDED[name]
    found = bounds(body, name) or bounds(body, param.alias or "")
    if body is MessagesBody and name == "temperature":
        assert found == (0, None, 1), "Anthropic's own"
    else:
        assert found == declared(param)


def test_a_parameter_reaches_the_engine_under_its_name() -> None:
    values: dict[str, object] = dict.fromkeys(BOUNDED, 1)
    read = sampling_of(decode(msgspec.json.Decoder(SamplingFields), msgspec.json.encode(values)))
    assert all(getattr(read, name) == 1 for name in PARAMS if name in BOUNDED)
    assert all(getattr(read.samplers, name) == 1 for name in SAMPLER_PARAMS if name in BOUNDED)


def test_no_wire_has_a_sampling_field_that_is_not_declared() -> None:
    known = {*PARAMS, *SAMPLER_PARAMS, *(param.alias for param in PARAMS.values()), "stop"}
    assert known >= {*SamplerFields.__struct_fields__}


def test_two_names_of_one_parameter_must_agree() -> None:
    with pytest.raises(InvalidValue, match="repeat_penalty"):
        sampling_of(SamplingFields(repetition_penalty=1.1, repeat_penalty=1.2))
