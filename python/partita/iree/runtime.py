"""IREE's runtime by name: contexts of modules, devices and arrays."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

from partita._compile import CompiledModule, DeviceArray
from partita._error import refuse
from partita.iree.compiler import HEADER

__all__ = ["Config", "DeviceArray", "HalDevice", "HalDriver", "SystemContext", "VmInstance", "VmModule", "asdevicearray", "get_driver"]

DRIVERS = ("local-task", "local-sync")
"""Names of drivers that mean the cores of this machine."""


class HalDevice:
    """The cores of this machine."""

    def __init__(self, driver: str) -> None:
        self.driver = driver

    def __repr__(self) -> str:
        return f"<HalDevice {self.driver}>"


class HalDriver:
    """A driver: what makes devices."""

    def __init__(self, name: str) -> None:
        self.name = name

    def create_default_device(self) -> HalDevice:
        return HalDevice(self.name)

    def __repr__(self) -> str:
        return f"<HalDriver {self.name}>"


def get_driver(name: str) -> HalDriver:
    """The driver of this name. Raises ``PartitaError`` E388 unless it is one of the CPU."""
    if name not in DRIVERS:
        raise refuse(
            "E388", "partita runs on the cores of this machine", expected=" or ".join(DRIVERS), found=name
        )
    return HalDriver(name)


class Config:
    """The choice of a driver."""

    def __init__(self, driver_name: str = "local-task", *, device: HalDevice | None = None) -> None:
        self.device = device or get_driver(driver_name).create_default_device()


class VmInstance:
    """Exists for programs that make one."""


class VmModule:
    """A loaded module with its name, ``module`` where the text gives none."""

    def __init__(self, compiled: CompiledModule, name: str) -> None:
        self.compiled, self.name = compiled, name

    @staticmethod
    def from_flatbuffer(instance: VmInstance, flatbuffer: bytes, warn_if_copy: bool = True) -> VmModule:
        """Loads what ``partita.iree.compiler`` made. Raises ``PartitaError`` E388 for other bytes, such as IREE's own."""
        if not flatbuffer.startswith(HEADER):
            raise refuse(
                "E388",
                "these bytes are no module of partita.iree.compiler",
                expected="what partita.iree.compiler.compile_str returned",
                found=repr(flatbuffer[:16]),
                help="compile the text again with partita.iree.compiler",
            )
        text = flatbuffer[len(HEADER) :].decode()
        named = re.search(r"^\s*(?:builtin\.)?module\s+@([\w.$-]+)", text, re.MULTILINE)
        return VmModule(CompiledModule(text), named[1] if named else "module")

    from_buffer = copy_buffer = from_flatbuffer

    @property
    def function_names(self) -> list[str]:
        return list(self.compiled)

    def __repr__(self) -> str:
        return f"<VmModule {self.name} : [{', '.join(self.function_names)}]>"


class SystemContext:
    """Modules by name: ``context.modules.module.f``."""

    def __init__(self, vm_modules: Any = None, config: Config | None = None) -> None:
        self.config = config or Config()
        self.modules = SimpleNamespace()
        for module in vm_modules or ():
            self.add_vm_module(module)

    def add_vm_module(self, vm_module: VmModule) -> None:
        setattr(self.modules, vm_module.name, vm_module.compiled)


def asdevicearray(device: HalDevice, a: Any, dtype: Any = None) -> DeviceArray:
    """An array on the device."""
    import numpy as np

    return DeviceArray(np.asarray(a, dtype=dtype))
