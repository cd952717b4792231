"""``partita.distributed.device_mesh`` under the path that older programs import."""

from partita.distributed.device_mesh import DeviceMesh, init_device_mesh

__all__ = ["DeviceMesh", "init_device_mesh"]
