"""`python -m spotchaos` is the command `spotchaos`."""

from spotchaos.cli import main

if __name__ == "__main__":
    main(prog_name="spotchaos")
