"""LangChain: ChatOpenAI over chat and Responses, ChatAnthropic over Messages, and OpenAIEmbeddings."""

from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel
from scenes import main, scene

WIRES = ("chat", "responses", "messages")
METHODS = ("json_schema", "function_calling", "json_mode")
THINKING = {"messages": {"thinking": {"type": "adaptive"}}}
"""Without it ChatAnthropic expects no thoughts, and a stream's text beside them is missing in its blocks."""


class City(BaseModel):
    """A city."""

    name: str
    people: int


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


def model(url: str, wire: str, **options: object) -> BaseChatModel:
    if wire == "messages":
        chat = ChatAnthropic(model="echo", base_url=url, api_key="none", max_retries=0, **options)
        chat._client._strict_response_validation = True
        return chat
    chat = ChatOpenAI(
        model="echo",
        base_url=url + "/v1",
        api_key="none",
        max_retries=0,
        stream_usage=True,
        use_responses_api=wire == "responses",
        **options,
    )
    chat.root_client._strict_response_validation = True
    return chat


def stream(wire: str) -> None:
    @scene(f"{wire}: stream")
    def play(url: str, name: str) -> object:
        chunks = list(model(url, wire, **THINKING.get(wire, {})).stream(name))
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole += chunk
        return {
            "deltas": [chunk.text for chunk in chunks if chunk.text],
            "blocks": [
                (block["type"], block.get("text") or block.get("reasoning")) for block in whole.content_blocks
            ],
            "usage": whole.usage_metadata["output_tokens"],
        }


def structured(wire: str, method: str) -> None:
    @scene(f"{wire}: city by {method}")
    def play(url: str, name: str) -> object:
        city = model(url, wire).with_structured_output(City, method=method).invoke(name)
        assert isinstance(city, City)
        return city.model_dump()


def turns(wire: str, how: str, **options: object) -> None:
    @scene(f"{wire}: three {how} turns")
    def play(url: str, name: str) -> object:
        chat = model(url, wire, **THINKING.get(wire, {}), **options).bind_tools([weather])
        history: list[BaseMessage] = [SystemMessage("Be brief.")]
        finals = []
        for said in (name, "What shall I take?", "Thanks."):
            history.append(HumanMessage(said))
            while True:
                answer = spoken(chat, history, is_streamed=how == "streamed")
                history.append(answer)
                if not answer.tool_calls:
                    break
                for call in answer.tool_calls:
                    result = weather.invoke(call)
                    assert isinstance(result, ToolMessage)
                    history.append(result)
            finals.append(history[-1].text)
        return finals


def spoken(chat: BaseChatModel, history: list[BaseMessage], *, is_streamed: bool) -> AIMessage:
    if not is_streamed:
        return chat.invoke(history)
    whole = None
    for chunk in chat.stream(history):
        whole = chunk if whole is None else whole + chunk
    return whole


@scene("embeddings")
def embeddings(url: str, _: str) -> object:
    # Its own splitting of long texts would download OpenAI's tokenizer.
    embed = OpenAIEmbeddings(
        model="echo", base_url=url + "/v1", api_key="none", max_retries=0, check_embedding_ctx_length=False
    )
    first, second = embed.embed_documents(["rain in Oslo", "sun in Rome"])
    again = embed.embed_query("rain in Oslo")
    return {"size": len(first), "is_same": first == again, "is_other": first != second}


for wire in WIRES:
    stream(wire)
    for method in METHODS if wire != "messages" else METHODS[:2]:
        structured(wire, method)
    turns(wire, "whole")
    turns(wire, "streamed")
turns("responses", "chained", use_previous_response_id=True)
turns("responses", "sealed", store=False, include=["reasoning.encrypted_content"])
turns("responses", "block", output_version="v1")
main()
