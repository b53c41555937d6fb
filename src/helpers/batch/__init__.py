"""Many dumps: one run folder each, one table and one index page of all; see docs/batch.md.

`dumps` finds them, `keys` names what is done, `store` knows what is there, `work` does one in a process of `child`;
`local` and `cluster` hand them out, `execute` puts it together; `table` and `page` show it.
"""

from helpers.batch.dumps import Dump, find_dumps
from helpers.batch.execute import BatchEnded, BatchResult, batch
from helpers.batch.work import Outcome

__all__ = ["BatchEnded", "BatchResult", "Dump", "Outcome", "batch", "find_dumps"]
