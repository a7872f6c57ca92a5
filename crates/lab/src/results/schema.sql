-- One campaign: an experiment that was run, or as far as it came. Times are nanoseconds unless the name says otherwise.

CREATE TABLE campaign (
  name TEXT NOT NULL,
  about TEXT NOT NULL,
  file TEXT NOT NULL,            -- of the experiment
  specification TEXT NOT NULL,   -- the experiment as it was written, passwords left out
  seed INTEGER NOT NULL,
  repetitions INTEGER NOT NULL,
  runs INTEGER NOT NULL,         -- that were planned
  started TEXT NOT NULL,         -- UTC
  ended TEXT,                    -- NULL: the lab was killed
  state TEXT NOT NULL            -- running, done, interrupted, failed
);

CREATE TABLE environment (
  key TEXT PRIMARY KEY,          -- host ..., lab ..., target 1 ...
  value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE cell (
  id INTEGER PRIMARY KEY,        -- from 1, in the order of the experiment
  scenario TEXT NOT NULL
);

-- What a cell has: the keys of the experiment and all parameters of its scenario.
CREATE TABLE cell_value (
  cell INTEGER NOT NULL REFERENCES cell (id),
  position INTEGER NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  is_varied INTEGER NOT NULL,    -- whether cells of this campaign differ in it by a list
  PRIMARY KEY (cell, key)
) WITHOUT ROWID;

-- One execution of a cell, in the order in which they were made.
CREATE TABLE run (
  id INTEGER PRIMARY KEY,
  cell INTEGER NOT NULL REFERENCES cell (id),
  repetition INTEGER NOT NULL,   -- from 1
  started TEXT NOT NULL,         -- UTC, before the preparation
  state TEXT NOT NULL,           -- done, interrupted, or failed
  detail TEXT,                   -- why it is not done
  ended_by TEXT,                 -- iterations, duration, interval, interrupted, lost; NULL: nothing was measured
  warmup_ns INTEGER NOT NULL,    -- from the first operation to where measuring began; 0 where it did not
  is_steady INTEGER,             -- whether a steady state was found by then; NULL: none was looked for
  elapsed_ns INTEGER NOT NULL,   -- that was measured, the warm-up not
  sets INTEGER,                  -- in which operations were done and measured; NULL: they were not done in sets
  sets_ns INTEGER,               -- from the first start to the last end, over all sets
  operations INTEGER NOT NULL,   -- that succeeded
  errors INTEGER NOT NULL,
  late INTEGER NOT NULL,
  dropped INTEGER NOT NULL,
  longest_queue INTEGER NOT NULL,
  refusals INTEGER NOT NULL,     -- how often operations that succeeded were told to come back before
  retries INTEGER NOT NULL,      -- how often they were tried again, after that or for any other reason
  client_cpu_ns INTEGER,         -- of the lab itself, preparation and verify included, or of its agents; NULL where the system does not tell
  steal_percent REAL,            -- of the machine's time that its host kept for others
  processors REAL,               -- in use by the lab, the database and the server of syncs, on average; NULL: the database is elsewhere, or nothing was sampled
  bottleneck TEXT,               -- what limited it: client, link, server, workers, database CPU, locks, disk, unknown; NULL: nothing was measured
  evidence TEXT,                 -- how that is known
  server_percent REAL,           -- of all processors' time in sets of syncs, the server's; NULL: nothing was sampled, or there is none
  database_percent REAL,         -- the same of the database's processes
  replica_drained_ns INTEGER     -- from the end of the clients until all that they had done showed at the replica; NULL: there is none, or that was not seen
);

-- The machine that the lab ran on, sample by sample; what was used since the sample before, in `span_ns`.
CREATE TABLE machine (
  run INTEGER NOT NULL REFERENCES run (id),
  at_ns INTEGER NOT NULL,        -- from the end of the warm-up
  span_ns INTEGER NOT NULL,
  busy_ns INTEGER NOT NULL,      -- of all processors
  idle_ns INTEGER NOT NULL,      -- of all processors
  waiting_ns INTEGER NOT NULL,   -- the part of it in which something waited for a disk
  disk_ns INTEGER NOT NULL,      -- in which the busiest disk had something to do
  received_bytes INTEGER NOT NULL, -- over all network devices, the one to itself too
  sent_bytes INTEGER NOT NULL,
  read_bytes INTEGER NOT NULL,   -- from the busiest disk
  written_bytes INTEGER NOT NULL,
  load REAL NOT NULL,            -- average of a minute
  PRIMARY KEY (run, at_ns)
) WITHOUT ROWID;

-- Processes, each with all that it has started; what was used since the sample before, in `span_ns`.
CREATE TABLE process (
  run INTEGER NOT NULL REFERENCES run (id),
  name TEXT NOT NULL,            -- lab, database, and those that the experiment names
  at_ns INTEGER NOT NULL,        -- from the end of the warm-up
  span_ns INTEGER NOT NULL,
  cpu_ns INTEGER NOT NULL,
  ready_ns INTEGER NOT NULL,     -- threads ready to run without a processor, added up over the threads
  rss_bytes INTEGER NOT NULL,    -- at that moment; what processes share is counted in each
  threads INTEGER NOT NULL,      -- at that moment
  voluntary_switches INTEGER NOT NULL,
  involuntary_switches INTEGER NOT NULL,
  read_calls INTEGER NOT NULL,   -- system calls that read; 0 where the kernel does not tell
  write_calls INTEGER NOT NULL,
  read_bytes INTEGER NOT NULL,   -- from disks
  written_bytes INTEGER NOT NULL,
  PRIMARY KEY (run, name, at_ns)
) WITHOUT ROWID;

-- How full the server of syncs was, in sets: syncs in each place, on average.
CREATE TABLE server_load (
  run INTEGER PRIMARY KEY REFERENCES run (id),
  receiving REAL NOT NULL,       -- whose requests came in
  waiting REAL NOT NULL,         -- that waited for a worker
  workers_busy REAL NOT NULL,    -- that had one
  uploaders_busy REAL NOT NULL,  -- of them, those with an upload
  sending REAL NOT NULL          -- whose answers went out
);

-- Each sync that was measured: when it began and ended at its client and at the server, from the end of the warm-up, and what the server did.
-- The server's columns are of the request that succeeded; NULL where its log has none. At most 100,000 of a run.
CREATE TABLE sync (
  run INTEGER NOT NULL REFERENCES run (id),
  client INTEGER NOT NULL,       -- from 1
  began_ns INTEGER NOT NULL,
  ended_ns INTEGER NOT NULL,
  refusals INTEGER NOT NULL,     -- how often it was told to come back before
  server_began_ns INTEGER,
  server_ended_ns INTEGER,
  receive_ns INTEGER,            -- the request
  wait_ns INTEGER,               -- for a worker
  greet_ns INTEGER,              -- who it is, and what it has
  upload_ns INTEGER,
  download_ns INTEGER,
  send_ns INTEGER,               -- what the client had not taken yet
  PRIMARY KEY (run, client, began_ns)
) WITHOUT ROWID;

-- What sessions in the database were at, the lab's or those of the server of syncs (then in sets): how many of them, on average.
CREATE TABLE wait (
  run INTEGER NOT NULL REFERENCES run (id),
  state TEXT NOT NULL,           -- active, idle, idle in transaction, ...
  type TEXT NOT NULL,            -- Lock, LWLock, IO, Client, ...; empty: it runs, or is ready to
  event TEXT NOT NULL,           -- transactionid, WALSync, ...
  statement TEXT NOT NULL,       -- its beginning, of active ones; empty beyond the hundred most frequent
  sessions REAL NOT NULL,
  PRIMARY KEY (run, state, type, event, statement)
) WITHOUT ROWID;

-- Statements that waited for a lock, and what the session that has it did last: how many, on average.
CREATE TABLE blocked (
  run INTEGER NOT NULL REFERENCES run (id),
  statement TEXT NOT NULL,
  behind TEXT NOT NULL,
  sessions REAL NOT NULL,
  PRIMARY KEY (run, statement, behind)
) WITHOUT ROWID;

-- What went over the network, of runs of requests and of syncs, of these the bodies alone: sums over operations that succeeded.
CREATE TABLE traffic (
  run INTEGER PRIMARY KEY REFERENCES run (id),
  sent_bytes INTEGER NOT NULL,   -- by the clients
  received_bytes INTEGER NOT NULL, -- by them: heads, and bodies as they are sent
  body_bytes INTEGER NOT NULL,   -- of them, the bodies'
  content_bytes INTEGER NOT NULL, -- the bodies once they are decoded
  hits INTEGER NOT NULL,         -- answers that came from a cache, as they say themselves
  misses INTEGER NOT NULL        -- answers that passed a cache and did not come from it
);

CREATE TABLE error (
  run INTEGER NOT NULL REFERENCES run (id),
  class TEXT NOT NULL,           -- SQLSTATE, SQLite's name, HTTP 404, truncated, checksum, size, refused, time-out, lost, other
  count INTEGER NOT NULL,
  example TEXT NOT NULL,         -- what the first of them said
  PRIMARY KEY (run, class)
) WITHOUT ROWID;

-- Seconds in which operations ended.
CREATE TABLE second (
  run INTEGER NOT NULL REFERENCES run (id),
  second INTEGER NOT NULL,       -- from the end of the warm-up
  operations INTEGER NOT NULL,
  errors INTEGER NOT NULL,
  response_p50_ns INTEGER NOT NULL,
  response_p99_ns INTEGER NOT NULL,
  response_max_ns INTEGER NOT NULL,
  response_mean_ns INTEGER NOT NULL,
  queries INTEGER NOT NULL,      -- statements of operations that succeeded, by their first word: SELECT, VALUES, WITH;
  updates INTEGER NOT NULL,      -- UPDATE,
  deletes INTEGER NOT NULL,      -- DELETE,
  inserts INTEGER NOT NULL,      -- INSERT, one for each row of those that a step sends with several; 0 where nothing is SQL
  rows_read INTEGER NOT NULL,    -- that statements gave
  PRIMARY KEY (run, second)
) WITHOUT ROWID;

-- The histograms: how many operations took this long, to three digits. Buckets of several runs may be added up.
CREATE TABLE bucket (
  run INTEGER NOT NULL REFERENCES run (id),
  clock TEXT NOT NULL,           -- service, response; start: how long after its set's first one each operation began;
                                 -- clock: how far agents' wall clocks were off, before each set;
                                 -- replica: of heartbeats, from the target's acknowledgement until each showed at its replica
  up_to_ns INTEGER NOT NULL,
  count INTEGER NOT NULL,
  PRIMARY KEY (run, clock, up_to_ns)
) WITHOUT ROWID;
