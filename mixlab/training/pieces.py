"""A network that is too large for one rank is built in pieces: while its constructor runs, each rank keeps a share of
every parameter, and the whole of those that were used last.

Every rank runs the same constructor and draws the same numbers, so the weights are those of one process, bit for bit.
On the meta device they would not be: there torch's initialisers draw nothing, and how often `trunc_normal_` draws
depends on what it drew, so the numbers of the next parameter cannot be known without drawing these.
"""

import ctypes
import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

M_MMAP_THRESHOLD = -3  # of GNU's malloc.h
SMALLEST = 16_384  # bytes; smaller parameters stay whole
COPIES = (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default)


class Pieces(TorchDispatchMode):
    """While it is active, all but the last used parameters lie in pieces on the ranks; an operation that needs one
    gathers it. So ranks must build alike. Whatever reads memory without an operation of torch, such as `numpy()`, may
    read no parameter but the last. `put_together` when all are built.
    """

    def __init__(self, *, rank: int, num_ranks: int) -> None:
        super().__init__()
        self.rank, self.num_ranks = rank, num_ranks
        # By the address of the storage, which a weak reference keeps from being given away. Sizes of those that are no
        # more count too: ranks must decide alike, and do not collect garbage at the same time.
        self._whole: dict[int, tuple[StorageWeakRef, int]] = {}  # the last used is the last
        self._pieces: dict[int, tuple[StorageWeakRef, Tensor]] = {}
        self._largest = 0
        self._stop_noting: Callable[[], None] = lambda: None

    def __enter__(self) -> "Pieces":
        return_freed_memory()
        self._stop_noting = register_module_parameter_registration_hook(
            lambda _module, _name, parameter: self._note(parameter)
        ).remove
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._stop_noting()
        super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        is_view = any(part.alias_info is not None and not part.alias_info.is_write for part in func._schema.returns)
        used = (
            []
            if is_view
            else [storage for leaf in tree_leaves((args, kwargs)) if (storage := self._known(leaf)) is not None]
        )
        for storage in used:
            self._gather(storage)
        result = func(*args, **(kwargs or {}))
        for storage in used:
            self._keep(storage)
        if used and func in COPIES:  # a copied network registers no parameters
            self._note(result)
        return result

    def put_together(self, tensors: Iterable[Tensor]) -> None:
        """Make these whole again, on every rank."""
        for tensor in tensors:
            self._gather(tensor.untyped_storage())

    def put_rest_together(self) -> None:
        """Make whole what is still in pieces and in use."""
        gc.collect()  # so that it is the same on every rank
        for known, _ in list(self._pieces.values()):
            if (storage := UntypedStorage._new_with_weak_ptr(known.cdata)) is not None:
                self._gather(storage)

    def _note(self, parameter: Tensor | None) -> None:
        """A tensor that may be taken apart once others are used."""
        if parameter is None or parameter.device.type != "cpu":
            return
        storage = parameter.untyped_storage()
        if storage.nbytes() >= SMALLEST and storage.resizable() and storage._cdata not in self._pieces:
            self._keep(storage)

    def _known(self, value: Any) -> UntypedStorage | None:
        """The memory of a tensor that was noted."""
        if not isinstance(value, Tensor) or value.device.type != "cpu" or value.layout != torch.strided:
            return None
        storage = value.untyped_storage()
        return storage if storage._cdata in self._whole or storage._cdata in self._pieces else None

    def _keep(self, storage: UntypedStorage) -> None:
        """As the last used; the first used are taken apart until what is whole is no more than twice the largest."""
        self._whole.pop(storage._cdata, None)
        self._whole[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._largest = max(self._largest, storage.nbytes())
        while sum(size for _, size in self._whole.values()) > 2 * self._largest:
            oldest = next(iter(self._whole))
            self._take_apart(oldest, self._whole.pop(oldest)[0])
        for address in [address for address, (known, _) in self._pieces.items() if known.expired()]:
            del self._pieces[address]

    def _take_apart(self, address: int, known: StorageWeakRef) -> None:
        storage = UntypedStorage._new_with_weak_ptr(known.cdata)
        if storage is None:
            return
        share = -(-storage.nbytes() // self.num_ranks)
        start = min(share * self.rank, storage.nbytes())
        piece = torch.zeros(share, dtype=torch.uint8)
        own = as_bytes(storage)[start : start + share]
        piece[: len(own)] = own
        storage.resize_(0)
        self._pieces[address] = known, piece

    def _gather(self, storage: UntypedStorage) -> None:
        if storage._cdata in self._pieces:
            _, piece = self._pieces.pop(storage._cdata)
            storage.resize_(len(piece) * self.num_ranks)
            dist.all_gather_into_tensor(as_bytes(storage), piece)


def as_bytes(storage: UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def return_freed_memory() -> None:
    """From now on, blocks of a megabyte and more go back to the system when they are freed.

    GNU's C library would keep them in its heap between others, and a rank would hold several times its share: 1.6 GB
    instead of 0.54 after a step (`mixlab bench scale`, 100 million parameters on 4 ranks).
    """
    if hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, 1 << 20)
