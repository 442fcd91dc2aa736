"""`ganglion fleet`: which subcommand is meant."""

from cyclopts import App

from ganglion.cli import fleet_manual as manual

app = App(name="fleet", help="See and steer the nodes behind a gateway.", help_epilogue=manual.FLEET)
app.command(
    "ganglion.cli.fleet_status:status",
    help="Show every node, its models, and what cannot be served.",
    help_epilogue=manual.STATUS,
)
app.command(
    "ganglion.cli.fleet_plan:plan",
    help="Show which model would go on which node, and why.",
    help_epilogue=manual.PLAN,
)
app.command("ganglion.cli.fleet_change:drain", help="Send no new work to a node.", help_epilogue=manual.DRAIN)
app.command(
    "ganglion.cli.fleet_change:move", help="Bring a model to another node.", help_epilogue=manual.MOVE
)
