"""Sums and broadcasts between ranks on several machines, over TCP; same calls and same results as exchange.py."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from socket import socket

from plimsoll_kernels.cpu.exchange import AnyExchange, check_rank, functions


class TcpExchange(AnyExchange):
    """An exchange over TCP.

    `sockets_by_rank`: a connected, non-blocking socket to each other rank; it may be closed afterwards. A failure shuts
    the connections down, so that all ranks fail. `check`: the same on all ranks; each call then first compares its kind
    and bytes with those of the others, in one more round trip. Raises ValueError if a socket is missing or unusable.
    """

    def __init__(self, sockets_by_rank: Mapping[int, socket], ranks: int, rank: int, *, check: bool = False) -> None:
        check_rank(ranks, rank)
        others = [each for each in range(ranks) if each != rank]
        if sorted(sockets_by_rank) != others:
            raise ValueError(f"rank {rank} needs sockets to the ranks {others}; got {sorted(sockets_by_rank)}")
        if blocking := [each for each in others if sockets_by_rank[each].getblocking()]:
            raise ValueError(f"the sockets to the ranks {blocking} are blocking; call setblocking(False)")
        descriptors = (ctypes.c_int32 * ranks)(*([-1] * ranks))
        for each in others:
            descriptors[each] = sockets_by_rank[each].fileno()
        opened = functions().plimsoll_exchange_connect(descriptors, ranks, rank, check)
        if opened < 0:
            raise ValueError(f"cannot use the sockets of the exchange: {os.strerror(-opened)}")
        super().__init__(opened, ranks, rank)
