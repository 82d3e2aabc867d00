"""`python -m deepagents_cli`."""

from deepagents_cli import main

main()
