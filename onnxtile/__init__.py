"""onnxtile prepares ONNX models for constrained hardware: it fuses, tiles and plans them, and proves each result by running it.

Each name is imported when it is first used, so that `import onnxtile` takes no time. Nor is a standard module imported before: until
the command handles Ctrl-C, an interrupt would print a traceback.
"""


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _version()
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module 'onnxtile' has no attribute {name!r}")
    import importlib

    api = importlib.import_module("onnxtile.api")

    return [*api.__getattr__(name), "__version__"] if name == "__all__" else getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*__getattr__("__all__"), *(name for name in globals() if name.startswith("__"))])


def _version() -> str:
    import os

    # `importlib.metadata` takes three times as long to load as Python itself, and `--version` needs nothing else of it.
    start, end = "onnxtile-", ".dist-info"
    beside = [entry.name for entry in os.scandir(f"{__path__[0]}/..")]
    installed = [name[len(start) : -len(end)] for name in beside if name.startswith(start) and name.endswith(end)]
    if len(installed) == 1:
        return installed[0]
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("onnxtile")
    except PackageNotFoundError:
        raise AttributeError("onnxtile runs from its sources, where it is not installed: it has no version") from None
