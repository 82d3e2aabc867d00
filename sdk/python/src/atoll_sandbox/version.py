"""The version of this package."""

from __future__ import annotations

import sys

VERSION = "0.1.0"
USER_AGENT = f"atoll-sandbox/{VERSION} python/{sys.version_info[0]}.{sys.version_info[1]}"
