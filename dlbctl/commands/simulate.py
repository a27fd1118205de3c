"""`dlbctl simulate`: what routing would do, without a request sent."""

from __future__ import annotations

import typer

from dlbctl.commands import simulate_baseline, simulate_fleet, simulate_fluid, simulate_noise, simulate_step_size

app = typer.Typer(help="Simulate routing: fluid limits, baselines and fleets, in virtual time.", no_args_is_help=True)

app.command("fluid")(simulate_fluid.fluid)
app.command("step-size")(simulate_step_size.step_size)
app.command("baseline")(simulate_baseline.baseline)
app.command("noise")(simulate_noise.noise)
app.command("fleet")(simulate_fleet.fleet)
