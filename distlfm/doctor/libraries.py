"""Probes of the Python libraries: torch and its kin, Ray, Flower, and the parts of the page."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from distlfm.doctor.probe import Finding, expect, load


def check_torch_cpu() -> str:
    """Ask whether torch computes."""
    torch = load("torch")
    product = torch.ones(2, 3) @ torch.ones(3, 2)
    expect(product.sum().item() == 12.0, "a product of two matrices is wrong")
    return f"Python {platform.python_version()}, torch {torch.__version__}"


# The default Linux build of torch brings CUDA's libraries; only the driver comes from the system.
INSTALL_TORCH = "pip install --force-reinstall torch"
INSTALL_DRIVER = "apt-get install nvidia-driver"
DRIVER_SIGNS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")  # the last one under Windows


def check_cuda() -> str:
    """Ask whether torch can use a GPU."""
    # Looked for before torch is loaded: that takes seconds, and most machines without a GPU have none of these.
    if not any(Path(sign).exists() for sign in DRIVER_SIGNS):
        raise Finding("missing", "no NVIDIA GPU with a driver; the CPU is used", f"{INSTALL_DRIVER} && {INSTALL_TORCH}")
    torch = load("torch")
    if torch.version.cuda is None:
        raise Finding("missing", f"torch {torch.__version__} is built without CUDA", INSTALL_TORCH)
    expect(torch.cuda.is_available(), f"torch is built for CUDA {torch.version.cuda} and cannot use the driver")
    expect(torch.ones(2, device="cuda").sum().item() == 2.0, "a sum on the GPU is wrong")
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    return f"CUDA {torch.version.cuda}: {names}"


def check_gpytorch() -> str:
    """Ask whether GPyTorch evaluates a kernel."""
    gpytorch = load("gpytorch")
    torch = load("torch")
    covariance = gpytorch.kernels.RBFKernel()(torch.zeros(1, 1)).to_dense()
    expect(abs(covariance.item() - 1) < 1e-6, "a kernel's covariance of a point with itself is not 1")
    return f"gpytorch {gpytorch.__version__}"


def check_torchdiffeq() -> str:
    """Ask whether torchdiffeq solves an equation."""
    torchdiffeq = load("torchdiffeq")
    torch = load("torch")
    decay = torchdiffeq.odeint(lambda _, y: -y, torch.ones(1), torch.tensor([0.0, 1.0]))
    expect(abs(decay[-1].item() - math.exp(-1)) < 1e-5, "the solution of y' = -y is wrong")
    return f"torchdiffeq {torchdiffeq.__version__}"


OBJECT_STORE_BYTES = 80 * 2**20  # the smallest Ray takes is 75 MiB
ANSWER_SECONDS = 40.0


def check_ray() -> str:
    """Ask whether a private, local Ray starts, answers and ends."""
    os.environ.pop("RAY_ADDRESS", None)
    # Ray listens on all interfaces, and an open Ray runs anybody's code.
    os.environ |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
    }
    ray = load("ray")
    # Its sockets lie below this directory, and a socket's path holds some hundred characters.
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as directory:
        ray.init(
            address="local",
            num_cpus=1,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=directory,
            _node_ip_address="127.0.0.1",
        )
        try:
            answer = ray.get(ray.remote(lambda number: 2 * number).remote(21), timeout=ANSWER_SECONDS)
        finally:
            ray.shutdown()
    expect(answer == 42, f"a remote call gave {answer} for 42")
    return f"ray {ray.__version__}: started, answered, ended"


PROGRAMS = ("flower-superlink", "flower-supernode", "flower-superexec", "flwr")


def check_flower() -> str:
    """Ask whether Flower is installed, with the programs that link and sites run."""
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    load("flwr")
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    absent = [program for program in PROGRAMS if shutil.which(program, path=search) is None]
    version = importlib.metadata.version("flwr")
    if absent:
        raise Finding("broken", f"flwr {version} without its programs {', '.join(absent)}")
    return f"flwr {version} with {PROGRAMS[0]}"


PARTS = ("starlette", "uvicorn")


def check_page() -> str:
    """Ask whether the parts of `distlfm serve` are installed."""
    for name in PARTS:
        load(name)
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PARTS)
