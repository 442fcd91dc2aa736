"""LlamaIndex: OpenAILike over chat and completions, OpenAILikeResponses over Responses, and embeddings."""

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import LLM, ChatMessage
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses
from pydantic import BaseModel
from scenes import main, scene

WIRES = ("chat", "responses")


class City(BaseModel):
    """A city."""

    name: str
    people: int


def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


TOOL = FunctionTool.from_defaults(weather)


def model(url: str, wire: str, **options: object) -> LLM:
    asked = {
        "model": "echo",
        "api_base": url + "/v1",
        "api_key": "none",
        "max_retries": 0,
        "context_window": 8192,
        "is_function_calling_model": True,
        **options,
    }
    if wire == "responses":
        # Only what the node keeps is sent back with its reasoning.
        llm = OpenAILikeResponses(store=True, **asked)
        clients = (llm._client, llm._aclient)
    else:
        llm = OpenAILike(is_chat_model=True, **asked)
        clients = (llm._get_client(), llm._get_aclient())
    for client in clients:
        client._strict_response_validation = True
    return llm


def stream(wire: str) -> None:
    @scene(f"{wire}: stream")
    def play(url: str, name: str) -> object:
        answers = list(model(url, wire).stream_chat([ChatMessage(role="user", content=name)]))
        return {"deltas": [answer.delta for answer in answers if answer.delta], "whole": str(answers[-1])}


def structured(wire: str, how: str, **options: object) -> None:
    @scene(f"{wire}: city by {how}")
    def play(url: str, name: str) -> object:
        return model(url, wire, **options).structured_predict(City, PromptTemplate(name)).model_dump()


def turns(wire: str, how: str, **options: object) -> None:
    @scene(f"{wire}: three {how} turns")
    def play(url: str, name: str) -> object:
        llm = model(url, wire, **options)
        history: list[ChatMessage] = []
        unsent = [ChatMessage(role="system", content="Be brief.")]
        finals = []
        for said in (name, "What shall I take?", "Thanks."):
            unsent.append(ChatMessage(role="user", content=said))
            while True:
                history += unsent
                answer = llm.chat_with_tools([TOOL], chat_history=unsent if how == "chained" else history)
                history.append(answer.message)
                unsent = []
                for call in llm.get_tool_calls_from_response(answer, error_on_no_tool_call=False):
                    result = TOOL(**call.tool_kwargs)
                    with_id = {"tool_call_id": call.tool_id}
                    unsent.append(ChatMessage(role="tool", content=str(result), additional_kwargs=with_id))
                if not unsent:
                    break
            finals.append(answer.message.content)
        return finals


def agent(wire: str) -> None:
    @scene(f"{wire}: three streamed turns")
    async def play(url: str, name: str) -> object:
        guide = FunctionAgent(tools=[TOOL], llm=model(url, wire), system_prompt="Be brief.", streaming=True)
        memory = ChatMemoryBuffer.from_defaults(token_limit=4096)
        finals = []
        for said in (name, "What shall I take?", "Thanks."):
            answer = await guide.run(said, memory=memory)
            finals.append(answer.response.content)
        return finals


@scene("completions")
def completions(url: str, name: str) -> object:
    llm = OpenAILike(model="echo", api_base=url + "/v1", api_key="none", max_retries=0, is_chat_model=False)
    whole = llm.complete(name).text
    return {
        "whole": whole,
        "streamed": [answer.delta for answer in llm.stream_complete(name) if answer.delta],
    }


@scene("embeddings")
def embeddings(url: str, _: str) -> object:
    embed = OpenAILikeEmbedding(model_name="echo", api_base=url + "/v1", api_key="none", max_retries=0)
    first, second = embed.get_text_embedding_batch(["rain in Oslo", "sun in Rome"])
    again = embed.get_query_embedding("rain in Oslo")
    return {"size": len(first), "is_same": first == again, "is_other": first != second}


for wire in WIRES:
    stream(wire)
    turns(wire, "whole")
    agent(wire)
structured("chat", "a tool")
structured("chat", "its schema", should_use_structured_outputs=True)
structured("responses", "its schema")
turns("responses", "chained", track_previous_responses=True)
main()
