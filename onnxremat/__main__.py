"""``python -m onnxremat`` is the command ``onnxremat``."""

from onnxremat.cli.app import main

if __name__ == "__main__":
    main()
