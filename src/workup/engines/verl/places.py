"""The data set that verl asks for: places in the order of the cases, which the driver knows."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset


class Places(Dataset[dict[str, Any]]):
    """`data_files` is the number of places; `Collection` decides which case is played at each."""

    def __init__(self, data_files: int, **_: Any) -> None:
        self.size = int(data_files)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"raw_prompt": "", "index": index}
