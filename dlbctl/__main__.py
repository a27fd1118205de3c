"""`python -m dlbctl`, the same as the `dlbctl` script."""

from dlbctl.cli import main

main()
