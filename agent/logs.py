"""Log lines: JSON for collectors, plain text where a person's terminal is."""

import datetime as dt
import json
import logging
import sys
import traceback

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `ts` (RFC 3339, UTC), `level`, `logger`, `msg`, what `extra` gave, and `error`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        when = dt.datetime.fromtimestamp(record.created, dt.UTC)
        fields: dict[str, object] = {
            "ts": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        fields |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info and record.exc_info[1]:
            fields["error"] = "".join(traceback.format_exception(record.exc_info[1]))
        return json.dumps(fields, default=str, ensure_ascii=False)


def set_up(level: str) -> None:
    """Sends all log lines of at least `level` to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    if sys.stderr.isatty():
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    else:
        handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Their retries and connections are ours to report.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    logging.getLogger("kubernetes").setLevel(logging.WARNING)
