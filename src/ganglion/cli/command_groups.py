"""The subcommands of `ganglion models`, `engines`, `concepts`, `fleet` and `keys`."""

from cyclopts import App

from ganglion.cli import engine_help_text, help_text

keys_app = App(name="keys", help="Make, list and revoke the gateway's keys.", help_epilogue=help_text.KEYS)
keys_app.command(
    "ganglion.cli.keys.key_commands:create",
    help="Make a key and print it, once.",
    help_epilogue=help_text.KEYS_CREATE,
)
keys_app.command(
    "ganglion.cli.keys.key_commands:list_keys",
    name="list",
    help="Show the keys.",
    help_epilogue=help_text.KEYS_LIST,
)
keys_app.command(
    "ganglion.cli.keys.key_commands:revoke", help="End a key.", help_epilogue=help_text.KEYS_REVOKE
)


fleet_app = App(name="fleet", help="See and steer the nodes behind a gateway.", help_epilogue=help_text.FLEET)
fleet_app.command(
    "ganglion.cli.fleet.status:status",
    help="Show every node, its models, and what cannot be served.",
    help_epilogue=help_text.FLEET_STATUS,
)
fleet_app.command(
    "ganglion.cli.fleet.plan:plan",
    help="Show which model would go on which node, and why.",
    help_epilogue=help_text.FLEET_PLAN,
)
fleet_app.command(
    "ganglion.cli.fleet.drain_move:drain",
    help="Send no new work to a node.",
    help_epilogue=help_text.FLEET_DRAIN,
)
fleet_app.command(
    "ganglion.cli.fleet.drain_move:move",
    help="Bring a model to another node.",
    help_epilogue=help_text.FLEET_MOVE,
)


concepts_app = App(
    name="concepts", help="Train, judge and share concept vectors.", help_epilogue=help_text.CONCEPTS
)
concepts_app.command(
    "ganglion.cli.concepts.train:train",
    help="Make a concept from examples and their opposites.",
    help_epilogue=help_text.CONCEPTS_TRAIN,
)
concepts_app.command(
    "ganglion.cli.concepts.evaluate:evaluate",
    name="eval",
    help="Say how well a concept separates examples that it has not seen.",
    help_epilogue=help_text.CONCEPTS_EVAL,
)
concepts_app.command(
    "ganglion.cli.concepts.show_packs:list_packs",
    name="list",
    help="Show the concept packs of this machine.",
    help_epilogue=help_text.CONCEPTS_LIST,
)
concepts_app.command(
    "ganglion.cli.concepts.show_packs:show",
    help="Show what a concept pack holds.",
    help_epilogue=help_text.CONCEPTS_SHOW,
)
concepts_app.command(
    "ganglion.cli.concepts.export:export",
    help="Copy a concept pack, also for llama.cpp.",
    help_epilogue=help_text.CONCEPTS_EXPORT,
)


models_app = App(name="models", help="Find, fetch and hold models.", help_epilogue=help_text.MODELS)
models_app.command(
    "ganglion.cli.models.list_models:list_models",
    name="list",
    help="Show every model on this machine.",
    help_epilogue=help_text.MODELS_LIST,
)
models_app.command(
    "ganglion.cli.models.show_model:show",
    help="Show what a model is, and the memory it takes.",
    help_epilogue=help_text.MODELS_SHOW,
)
models_app.command(
    "ganglion.cli.models.pull:pull",
    help="Download a model from the hub.",
    help_epilogue=help_text.MODELS_PULL,
)
models_app.command(
    "ganglion.cli.models.remove:rm", help="Remove a downloaded model.", help_epilogue=help_text.MODELS_RM
)
models_app.command(
    "ganglion.cli.models.running:load",
    help="Load a model into a running node.",
    help_epilogue=help_text.MODELS_LOAD,
)
models_app.command(
    "ganglion.cli.models.running:unload",
    help="Let a running node give a model's memory back.",
    help_epilogue=help_text.MODELS_UNLOAD,
)
models_app.command(
    "ganglion.cli.models.resolve:resolve",
    help="Say what a name means, and why.",
    help_epilogue=help_text.MODELS_RESOLVE,
)
models_app.command(
    "ganglion.cli.models.verify:verify",
    help="Check that models are undamaged.",
    help_epilogue=help_text.MODELS_VERIFY,
)
models_app.command(
    "ganglion.cli.models.running:ps",
    help="Show the models of a running node.",
    help_epilogue=help_text.MODELS_PS,
)


engines_app = App(
    name="engines", help="See, build and install what computes.", help_epilogue=engine_help_text.ENGINES
)
engines_app.command(
    "ganglion.cli.engines.list_engines:list_engines",
    name="list",
    help="Show the engines that are here, and what each can use.",
    help_epilogue=engine_help_text.ENGINES_LIST,
)
engines_app.command(
    "ganglion.cli.engines.build_engine:build",
    help="Compile llama.cpp for the GPU or processor of this machine.",
    help_epilogue=engine_help_text.ENGINES_BUILD,
)
engines_app.command(
    "ganglion.cli.engines.install_engine:install",
    help="Install vLLM in an environment of its own.",
    help_epilogue=engine_help_text.ENGINES_INSTALL,
)
engines_app.command(
    "ganglion.cli.engines.remove_engine:remove",
    help="Remove an engine that was built or installed here.",
    help_epilogue=engine_help_text.ENGINES_REMOVE,
)
