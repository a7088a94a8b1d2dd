"""Creates small configs of any class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sweep.sizes import BY_TYPE, SECOND, SIZES

MOST_PARAMETERS = 20_000_000
_TYPES = ("layer_types", "layers_block_type", "mlp_layer_types")
"""Names of the lists of layers' kinds in configs."""


def small_configs(kind: type[Any], name: str) -> Iterator[Any]:
    """Yield small configs that a class accepts, the best first. Sizes that its config does not have are left out.
    Raises the class's last error if it accepts none.
    """
    last: Exception | None = None
    made = False
    for sizes in (SIZES, SECOND):
        try:
            config = kind(**_known(_defaults(kind, name), sizes, kind, name))
        except Exception as error:  # noqa: BLE001 - any class may reject these sizes
            last = error
            continue
        made = True
        yield config
    if not made and last is not None:
        raise last


def _defaults(kind: type[Any], name: str) -> dict[str, Any]:
    try:
        made: dict[str, Any] = kind().to_dict()
    except Exception:  # noqa: BLE001 - some classes reject their own defaults
        made = kind(**BY_TYPE.get(name, {})).to_dict()
    return made


def _known(
    defaults: Mapping[str, Any], sizes: Mapping[str, Any], kind: type[Any] | None, name: str | None
) -> dict[str, Any]:
    """Return the known sizes of a config with one layer of each of its kinds, and the same for nested configs."""
    names = {*defaults, *getattr(kind, "attribute_map", {})}
    found = {field: value for field, value in sizes.items() if field in names}
    if "qk_rope_head_dim" in found:
        found.pop("head_dim", None)  # there it is the rotated part, given by the other field
    found |= _layers(defaults)
    for field, value in defaults.items():
        if field.endswith("_config") and isinstance(value, dict) and isinstance(value.get("model_type"), str):
            inner = value["model_type"]
            found[field] = {"model_type": inner, **_known(value, sizes, None, inner)}
    return found | dict(BY_TYPE.get(name or "", {}))


def _layers(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config's lists of layer kinds, with each kind at least once, at least two layers, and all of equal
    length; and the number of layers. {} without such lists.
    """
    listed = {name: list(dict.fromkeys(defaults[name])) for name in _TYPES if isinstance(defaults.get(name), list)}
    if not listed:
        return {}
    count = max(2, *map(len, listed.values()))
    return {name: (kinds * count)[:count] for name, kinds in listed.items()} | {"num_hidden_layers": count}
