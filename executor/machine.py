"""What a reader of timings must know of the machine that made them, and of the software and the weights.

Used by whatever writes records.
"""

from __future__ import annotations

import hashlib
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch

from executor.placement import allowed_cores

_CPU_INFO = Path("/proc/cpuinfo")
_PACKAGES = ("ssdsim", "torch", "transformers", "numpy")
_CHUNK_BYTES = 1 << 20


def describe_machine() -> dict[str, Any]:
    """Processor, cores, memory and accelerators."""
    return {
        "cpu": _cpu_model(),
        "num_cores": psutil.cpu_count(logical=False),
        "num_threads": psutil.cpu_count(),
        "num_allowed_cores": len(allowed_cores()),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def describe_load() -> dict[str, Any]:
    """How busy the machine is now: load averages over 1, 5 and 15 minutes, memory that is free."""
    return {
        "load_average": list(os.getloadavg()),
        "available_memory_bytes": psutil.virtual_memory().available,
    }


def software_versions() -> dict[str, str]:
    """Of Python and of the packages that computed; `unknown` where a package is not installed as one."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "unknown"
    return versions


def weights_digest(source: str) -> str | None:
    """SHA-256 over the weight files of a model source, in the order of their names; None for a hub id, which is its
    own name, and for dummy weights, which follow from their seed."""
    path = Path(source)
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path] if path.is_file() else []
    if not files:
        return None
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


def public_name(source: str) -> str:
    """A hub's id as it is; of a path its last part, since no path of this machine is to be stored."""
    path = Path(source)
    return path.resolve().name if path.exists() else source


def _cpu_model() -> str:
    if _CPU_INFO.is_file():
        for line in _CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
