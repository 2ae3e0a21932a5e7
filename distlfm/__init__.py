"""distlfm infers latent forces: the unseen inputs that drive a system whose equation is known."""

from distlfm.instance import Instance, Truth
from distlfm.version import __version__

__all__ = ["Instance", "Truth", "__version__"]
