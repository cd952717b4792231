"""The helpers of PyTorch's examples of tensor parallelism: a logger, messages of one rank, a check of the device count."""

from __future__ import annotations

import logging

__all__ = ["get_logger", "rank_log", "verify_min_gpu_count"]

_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def get_logger() -> logging.Logger:
    """A logger that writes messages from level INFO on to the standard error."""
    logging.basicConfig(format=_FORMAT, datefmt="%H:%M:%S")
    logger = logging.getLogger("partita")
    logger.setLevel(logging.INFO)
    return logger


def rank_log(_rank: int, logger: logging.Logger, msg: str) -> None:
    """Logs a message of rank 0; those of others are left out."""
    if _rank == 0:
        logger.info(msg)


def verify_min_gpu_count(min_gpus: int = 2) -> bool:
    """True: ranks share the cores of this machine, so there are as many as a mesh has. ``ValueError`` below 1."""
    if min_gpus < 1:
        raise ValueError(f"min_gpus is {min_gpus}, which is below 1")
    return True
