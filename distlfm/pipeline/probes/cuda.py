"""Can torch use a GPU?"""

from __future__ import annotations

from pathlib import Path

from distlfm.pipeline.probes.answer import Finding, expect, load, reply

# The default Linux build of torch brings CUDA's libraries; only the driver comes from the system.
INSTALL_TORCH = "pip install --force-reinstall torch"
INSTALL_DRIVER = "apt-get install nvidia-driver"
DRIVER_SIGNS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")  # the last one under Windows


def check() -> str:
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


if __name__ == "__main__":
    reply(check)
