-- An in-memory database of @ROWS@ rows with two indexes; aggregates, joins, updates, deletes.
PRAGMA temp_store = memory;
PRAGMA cache_spill = off;
CREATE TABLE item (id INTEGER PRIMARY KEY, kind INTEGER, code INTEGER, body TEXT);
WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < @ROWS@)
INSERT INTO item SELECT i, i * 7919 % 1000, i * 2654435761 % 4294967296, 'body of row ' || i || substr('@PAD@', 1, 40 + i % 90) FROM n;
CREATE INDEX by_code ON item (code);
CREATE INDEX by_kind ON item (kind, id);
SELECT count(*), sum(length(body)), min(code), max(code) FROM item;
SELECT kind, count(*), sum(code) FROM item WHERE kind % 100 = 7 GROUP BY kind ORDER BY kind;
UPDATE item SET body = body || '!' WHERE kind < 100;
DELETE FROM item WHERE kind BETWEEN 500 AND 550;
SELECT count(*), sum(id * code % 1000003) FROM item WHERE code BETWEEN 100000000 AND 400000000;
SELECT a.kind, sum(length(b.body)) FROM item a JOIN item b ON b.id = a.id + 1 WHERE a.kind IN (3, 33, 333) GROUP BY a.kind;
SELECT sum(length(body)) FROM item INDEXED BY by_kind WHERE kind BETWEEN 100 AND 300;
PRAGMA integrity_check(1);
