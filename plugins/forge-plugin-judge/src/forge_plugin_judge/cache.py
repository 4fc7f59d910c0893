"""Grades that were already given, by what was graded: in memory, and in an SQLite file if there is one.

    cache = cache_for("grades.sqlite", 10_000)
    key = content_key("http://127.0.0.1:8000/score", {"response": "4"})
    cache.get(key)          # None
    cache.put(key, [1.0, {}, ""])

Only grades are kept, never errors. A file may be shared by processes and survives them.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections import OrderedDict
from functools import lru_cache
from pathlib import Path
from typing import Any

from forge_host.api import UsageError


def content_key(*content: Any) -> str:
    """A digest of everything that can change the grade."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=repr).encode()).hexdigest()


class Cache:
    """The newest `entries` in memory; all of them in `file`. Safe in threads."""

    def __init__(self, file: str | None, entries: int) -> None:
        self._entries, self._memory = entries, OrderedDict[str, str]()
        self._lock = threading.Lock()
        self._database = _open(file) if file else None

    def get(self, key: str) -> Any:
        """What was put there; None if nothing was."""
        with self._lock:
            text = self._memory.get(key)
            if text is None and self._database is not None:
                row = self._database.execute("SELECT grade FROM grades WHERE key = ?", (key,)).fetchone()
                text = row[0] if row else None
            if text is None:
                return None
            self._remember(key, text)
            return json.loads(text)

    def put(self, key: str, grade: Any) -> None:
        text = json.dumps(grade)
        with self._lock:
            self._remember(key, text)
            if self._database is not None:
                with self._database:
                    self._database.execute("INSERT OR REPLACE INTO grades VALUES (?, ?)", (key, text))

    def _remember(self, key: str, text: str) -> None:
        self._memory[key] = text
        self._memory.move_to_end(key)
        while len(self._memory) > self._entries:
            self._memory.popitem(last=False)


def cache_for(file: str | None, entries: int) -> Cache | None:
    """This process's cache with these settings; None when both are off."""
    return _cache(file, entries, os.getpid()) if file or entries else None


@lru_cache
def _cache(file: str | None, entries: int, _pid: int) -> Cache:
    return Cache(file, entries)


def _open(file: str) -> sqlite3.Connection:
    try:
        Path(file).expanduser().parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(Path(file).expanduser(), timeout=30.0, check_same_thread=False)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE IF NOT EXISTS grades (key TEXT PRIMARY KEY, grade TEXT NOT NULL)")
        database.commit()
    except (OSError, sqlite3.Error) as error:
        raise UsageError(
            f"cache_file {file} cannot be used ({error})", fix="name another file or leave it out"
        ) from None
    return database
