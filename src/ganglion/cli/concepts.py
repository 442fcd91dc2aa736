"""`ganglion concepts`: which subcommand is meant."""

from cyclopts import App

from ganglion.cli import concepts_manual as manual

app = App(name="concepts", help="Train, judge and share concept vectors.", help_epilogue=manual.CONCEPTS)
app.command(
    "ganglion.cli.concepts_train:train",
    help="Make a concept from examples and their opposites.",
    help_epilogue=manual.TRAIN,
)
app.command(
    "ganglion.cli.concepts_eval:evaluate",
    name="eval",
    help="Say how well a concept separates examples that it has not seen.",
    help_epilogue=manual.EVAL,
)
app.command(
    "ganglion.cli.concepts_list:list_packs",
    name="list",
    help="Show the concept packs of this machine.",
    help_epilogue=manual.LIST,
)
app.command(
    "ganglion.cli.concepts_show:show", help="Show what a concept pack holds.", help_epilogue=manual.SHOW
)
app.command(
    "ganglion.cli.concepts_export:export",
    help="Copy a concept pack, also for llama.cpp.",
    help_epilogue=manual.EXPORT,
)
