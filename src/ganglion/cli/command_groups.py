"""Every command by its name: the function behind it, and what `--help` says of it.

Law: a function is named as text, so that its module waits until the command is chosen.
"""

from collections.abc import Iterable
from typing import Final

from cyclopts import App

from ganglion.cli import engine_help_text, help_text

_Commands = Iterable[tuple[str, str, str, str]]
"""Names, the functions below `ganglion.cli`, summaries, and what stands under the flags."""

_KEYS: Final = (
    ("create", "keys.key_commands:create", "Make a key and print it, once.", help_text.KEYS_CREATE),
    ("list", "keys.key_commands:list_keys", "Show the keys.", help_text.KEYS_LIST),
    ("revoke", "keys.key_commands:revoke", "End a key.", help_text.KEYS_REVOKE),
)
_FLEET_STATUS: Final = "Show every node, its models, and what cannot be served."
_FLEET: Final = (
    ("status", "fleet.status:status", _FLEET_STATUS, help_text.FLEET_STATUS),
    ("plan", "fleet.plan:plan", "Show which model would go on which node, and why.", help_text.FLEET_PLAN),
    ("drain", "fleet.drain_move:drain", "Send no new work to a node.", help_text.FLEET_DRAIN),
    ("move", "fleet.drain_move:move", "Bring a model to another node.", help_text.FLEET_MOVE),
)
_TRAIN: Final = "Make a concept from examples and their opposites."
_EVAL: Final = "Say how well a concept separates examples that it has not seen."
_CONCEPTS: Final = (
    ("train", "concepts.train:train", _TRAIN, help_text.CONCEPTS_TRAIN),
    ("eval", "concepts.evaluate:evaluate", _EVAL, help_text.CONCEPTS_EVAL),
    (
        "list",
        "concepts.show_packs:list_packs",
        "Show the concept packs of this machine.",
        help_text.CONCEPTS_LIST,
    ),
    ("show", "concepts.show_packs:show", "Show what a concept pack holds.", help_text.CONCEPTS_SHOW),
    (
        "export",
        "concepts.export:export",
        "Copy a concept pack, also for llama.cpp.",
        help_text.CONCEPTS_EXPORT,
    ),
)
_UNLOAD: Final = "Let a running node give a model's memory back."
_MODELS: Final = (
    ("list", "models.list_models:list_models", "Show every model on this machine.", help_text.MODELS_LIST),
    (
        "show",
        "models.show_model:show",
        "Show what a model is, and the memory it takes.",
        help_text.MODELS_SHOW,
    ),
    ("pull", "models.pull:pull", "Download a model from the hub.", help_text.MODELS_PULL),
    ("rm", "models.remove:rm", "Remove a downloaded model.", help_text.MODELS_RM),
    ("load", "models.running:load", "Load a model into a running node.", help_text.MODELS_LOAD),
    ("unload", "models.running:unload", _UNLOAD, help_text.MODELS_UNLOAD),
    ("resolve", "models.resolve:resolve", "Say what a name means, and why.", help_text.MODELS_RESOLVE),
    ("verify", "models.verify:verify", "Check that models are undamaged.", help_text.MODELS_VERIFY),
    ("ps", "models.running:ps", "Show the models of a running node.", help_text.MODELS_PS),
)
_ENGINES: Final = (
    (
        "list",
        "engines.list_engines:list_engines",
        "Show the engines that are here, and what each can use.",
        engine_help_text.ENGINES_LIST,
    ),
    (
        "build",
        "engines.build_engine:build",
        "Compile llama.cpp for the GPU or processor of this machine.",
        engine_help_text.ENGINES_BUILD,
    ),
    (
        "install",
        "engines.install_engine:install",
        "Install vLLM in an environment of its own.",
        engine_help_text.ENGINES_INSTALL,
    ),
    (
        "remove",
        "engines.remove_engine:remove",
        "Remove an engine that was built or installed here.",
        engine_help_text.ENGINES_REMOVE,
    ),
)
_COMPLETION: Final = "Print the script that completes our commands in a shell."
_COMMANDS: Final = (
    ("serve", "serve:serve", "Run a node: models behind HTTP.", help_text.SERVE),
    ("gateway", "gateway:gateway", "Run a gateway: many nodes as one server.", help_text.GATEWAY),
    ("chat", "inference.chat:chat", "Talk to a model in this terminal.", help_text.CHAT),
    ("complete", "inference.complete:complete", "Continue a text and print it.", help_text.COMPLETE),
    ("score", "inference.score:score", "Say how likely a model finds a text.", help_text.SCORE),
    ("session", "inference.session:session", "Drive a token session of a running node.", help_text.SESSION),
    ("usage", "keys.usage:usage", "Show what keys, tenants and models used.", help_text.USAGE),
    ("doctor", "system.doctor:doctor", "Check this machine and say what to do.", help_text.DOCTOR),
    ("completion", "system.completion:completion", _COMPLETION, help_text.COMPLETION),
    ("version", "system.version:version", "Print the versions of Ganglion and its engines.", ""),
)
_GROUPS: Final = (
    ("models", "Find, fetch and hold models.", help_text.MODELS, _MODELS),
    ("engines", "See, build and install what computes.", engine_help_text.ENGINES, _ENGINES),
    ("concepts", "Train, judge and share concept vectors.", help_text.CONCEPTS, _CONCEPTS),
    ("fleet", "See and steer the nodes behind a gateway.", help_text.FLEET, _FLEET),
    ("keys", "Make, list and revoke the gateway's keys.", help_text.KEYS, _KEYS),
)


def add_commands(app: App) -> None:
    """Give the app every command and every group of commands."""
    _add(app, _COMMANDS)
    for name, summary, epilogue, commands in _GROUPS:
        group = App(name=name, help=summary, help_epilogue=epilogue)
        _add(group, commands)
        app.command(group)


def _add(app: App, commands: _Commands) -> None:
    for name, function, summary, epilogue in commands:
        app.command(f"ganglion.cli.{function}", name=name, help=summary, help_epilogue=epilogue)
