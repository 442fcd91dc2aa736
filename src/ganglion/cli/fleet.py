"""`ganglion fleet`: which subcommand is meant."""

from cyclopts import App

from ganglion.cli import fleet_manual as manual

app = App(name="fleet", help="Look after the nodes behind a gateway.", help_epilogue=manual.FLEET)
app.command(
    "ganglion.cli.fleet_plan:plan",
    help="Show which model would go on which node, and why.",
    help_epilogue=manual.PLAN,
)
