"""``python -m onnxremat``: the command line."""

from onnxremat.cli.app import main

if __name__ == "__main__":
    main()
