"""`python -m spikecal`: the command, for launchers such as torchrun that start modules."""

from spikecal.cli.main import run

if __name__ == "__main__":
    run()
