"""`ganglion models`: which subcommand is meant."""

from cyclopts import App

from ganglion.cli import models_manual as manual

app = App(name="models", help="Find, fetch and hold models.", help_epilogue=manual.MODELS)
app.command(
    "ganglion.cli.models_list:list_models",
    name="list",
    help="Show every model on this machine.",
    help_epilogue=manual.LIST,
)
app.command(
    "ganglion.cli.models_show:show",
    help="Show what a model is, and the memory it takes.",
    help_epilogue=manual.SHOW,
)
app.command("ganglion.cli.models_pull:pull", help="Download a model from the hub.", help_epilogue=manual.PULL)
app.command("ganglion.cli.models_rm:rm", help="Remove a downloaded model.", help_epilogue=manual.RM)
app.command(
    "ganglion.cli.models_load:load", help="Load a model into a running node.", help_epilogue=manual.LOAD
)
app.command(
    "ganglion.cli.models_load:unload",
    help="Let a running node give a model's memory back.",
    help_epilogue=manual.UNLOAD,
)
app.command(
    "ganglion.cli.models_resolve:resolve",
    help="Say what a name means, and why.",
    help_epilogue=manual.RESOLVE,
)
app.command(
    "ganglion.cli.models_verify:verify",
    help="Check that models are undamaged.",
    help_epilogue=manual.VERIFY,
)
app.command("ganglion.cli.models_ps:ps", help="Show the models of a running node.", help_epilogue=manual.PS)
