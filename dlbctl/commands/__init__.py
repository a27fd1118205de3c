"""One file per verb: parse, call, render. Heavy imports wait inside the commands."""
