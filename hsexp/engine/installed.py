"""Whether vLLM here would find the plugin; imports neither."""

from importlib.metadata import entry_points

GROUP, PLUGIN = "vllm.general_plugins", "hsexp.engine.plugin:register"


def plugin_fault() -> str | None:
    """Why vLLM would start without the plugin; None if it would not.

    vLLM looks through the metadata of installed packages, so that a source tree on Python's search
    path is not enough.
    """
    if any(point.value == PLUGIN for point in entry_points(group=GROUP)):
        return None
    return "hsexp runs from its sources, and vLLM finds its plugin only when it is installed (pip)"
