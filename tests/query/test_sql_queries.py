"""Ordinary SQL works through the fence, with the answers that DuckDB gives over plain tables."""

import pytest

import queries

both = queries.both


QUERIES = """
WITH people AS (SELECT * FROM people WHERE id > 1) SELECT id FROM people
WITH people AS MATERIALIZED (SELECT id + 1 AS id FROM people) SELECT * FROM people
WITH a AS (SELECT * FROM people), people AS (SELECT 1 AS one) SELECT a.id, people.one FROM a, people
WITH a AS (SELECT 1 AS n), b AS (SELECT n + 1 AS n FROM a), c AS (FROM b UNION ALL FROM a) SELECT sum(n) FROM c
WITH sales AS (SELECT * FROM sales WHERE kind = 'a'), t AS (WITH sales AS (SELECT id FROM sales LIMIT 2) SELECT count(*) n FROM sales) SELECT n, (SELECT count(*) FROM sales) FROM t
SELECT * FROM people, (WITH people AS (SELECT 7 AS q) SELECT q FROM people)
SELECT (WITH people AS (SELECT 7 AS q) SELECT q FROM people), id FROM people
WITH t AS (SELECT 1 n) (WITH t AS (SELECT n + 1 n FROM t) FROM t) UNION ALL FROM t
WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT sum(n) FROM r
WITH RECURSIVE people AS (SELECT id FROM people UNION ALL SELECT id + 10 FROM people WHERE id < 20) SELECT * FROM people
WITH RECURSIVE people AS (SELECT id + 1 AS id FROM people) SELECT * FROM people
WITH RECURSIVE r(n) AS (SELECT 1 UNION SELECT n + 1 FROM r WHERE n < (SELECT max(id) FROM people)) SELECT * FROM r
WITH RECURSIVE a(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM a WHERE n < 3), b(n) AS (SELECT n FROM a UNION ALL SELECT n + 10 FROM b WHERE n < 30) FROM b
WITH RECURSIVE a(n) AS (SELECT 1 UNION ALL (WITH a AS (SELECT 5 n) SELECT n + 1 FROM a WHERE n < 3)) FROM a
WITH RECURSIVE a AS (WITH b AS (SELECT 1 n) SELECT n FROM b UNION ALL SELECT n + 1 FROM a WHERE n < 3) FROM a
WITH RECURSIVE r(k, v) USING KEY (k) AS (SELECT id, 0 FROM people UNION SELECT k, v + 1 FROM recurring.r WHERE v < 3) FROM r
WITH T AS (SELECT 1 n) SELECT t.n FROM t
WITH "odd ""name" AS (SELECT 1 n) SELECT "odd ""name".n FROM "odd ""name"
SELECT people FROM people WHERE id = 1
SELECT p.* EXCLUDE (facts, tags) REPLACE (upper(name) AS name) FROM people p
SELECT COLUMNS('^(id|name)$') FROM people
SELECT PEOPLE.Id FROM people
SELECT (SELECT max(id) FROM people), EXISTS (FROM sales), (SELECT count(*) FROM sales s WHERE s.person = people.id) AS n FROM people
SELECT name FROM people WHERE id IN (SELECT person FROM sales WHERE amount > 10) AND id NOT IN (2)
SELECT name FROM people WHERE id = ANY (SELECT person FROM sales) AND id >= ALL (SELECT 1)
SELECT town, count(*) FILTER (WHERE id > 1) AS n, string_agg(name, ',' ORDER BY name DESC) AS who FROM people GROUP BY town HAVING count(*) > 0
SELECT town, kind, sum(amount) FROM people JOIN sales ON person = people.id GROUP BY GROUPING SETS ((town), (kind), ())
SELECT town, kind, sum(amount), grouping(town) FROM people JOIN sales ON person = people.id GROUP BY ROLLUP (town, kind)
SELECT kind, count(*) FROM sales GROUP BY ALL
SELECT DISTINCT ON (person) person, id FROM sales ORDER BY person, id DESC
SELECT id, sum(amount) OVER (PARTITION BY person ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM sales
SELECT id, rank() OVER w, lag(amount, 1, 0.0) OVER w, first_value(id) OVER w, ntile(2) OVER w FROM sales WINDOW w AS (ORDER BY amount DESC)
SELECT id FROM sales QUALIFY row_number() OVER (PARTITION BY kind ORDER BY id DESC) = 1
SELECT * FROM people p LEFT JOIN sales s ON s.person = p.id AND s.amount > 14
SELECT id, name FROM people SEMI JOIN sales ON people.id = sales.person AND kind = 'a'
SELECT id, name FROM people ANTI JOIN sales ON people.id = sales.person AND kind = 'a'
SELECT * FROM (SELECT id FROM people) NATURAL JOIN (SELECT id, amount FROM sales)
SELECT p.id, s.amount FROM people p ASOF JOIN sales s ON p.id >= s.amount
SELECT p.id, q.z FROM people p, LATERAL (SELECT p.id * 2 AS z) q
SELECT p.id, t.amount FROM people p LEFT JOIN LATERAL (SELECT amount FROM sales WHERE person = p.id ORDER BY amount DESC LIMIT 1) t ON true
SELECT a.id, b.id FROM people a CROSS JOIN people b WHERE a.id < b.id
SELECT id FROM people UNION SELECT person FROM sales EXCEPT SELECT 3 INTERSECT SELECT 3
SELECT id, name FROM people UNION ALL BY NAME SELECT amount, id FROM sales
(SELECT id FROM sales ORDER BY amount DESC LIMIT 1) UNION ALL (SELECT id FROM sales ORDER BY amount LIMIT 1)
SELECT * FROM (VALUES (1, 'x'), (2, 'y')) t(n, s) WHERE n IN (1, 2, 3)
VALUES (1, 'a'), (2, 'b')
FROM people SELECT id WHERE town = 'rome'
FROM (SELECT person, kind, amount FROM sales) PIVOT (sum(amount) FOR kind IN ('a', 'b') GROUP BY person)
SELECT * FROM (PIVOT sales ON kind IN ('a', 'b') USING count(*) AS n GROUP BY person)
WITH s AS (SELECT person, kind, amount FROM sales) FROM s PIVOT (max(amount) FOR kind IN ('a'))
SELECT * FROM (SELECT id, amount FROM sales) UNPIVOT (v FOR k IN (amount))
SELECT list_transform(tags, lambda t: t || '!'), list_filter([1, 2, 3], lambda x: x > 1), [x * 2 FOR x IN [1, 2, 3] IF x > 1] FROM people
SELECT list_reduce([1, 2, 3], lambda a, b: a + b), list_sort([3, 1]), [1, 2, 3][2:], len(tags), tags[1] FROM people
SELECT id, unnest(tags) AS tag FROM people
SELECT facts->'$.k', facts->>'$.z', json_extract(facts, '$.k[0]'), json_array_length(facts, '$.k') FROM people
SELECT people.id, j.value FROM people, json_each(people.facts) j
SELECT to_json({'a': 1, 'b': [1, 2]}), json_group_array(id) FROM people WHERE id = 1 GROUP BY ALL
SELECT place.x, place['y'], struct_pack(a := id).a FROM sales
SELECT MAP {'a': 1}['a'], {'x': 1}.x, (1, 2), [1, 2] || [3]
SELECT born::DATE, date_trunc('month', born::DATE), year(born::DATE), born::DATE + INTERVAL 1 MONTH, date_diff('day', born::DATE, DATE '2020-01-01') FROM people
SELECT EXTRACT(year FROM born::DATE), strftime(born::DATE, '%d.%m.%Y'), born::DATE BETWEEN '1980-01-01' AND '1995-01-01' FROM people
SELECT (TIMESTAMP '2020-01-01 10:00:00' AT TIME ZONE 'UTC')::VARCHAR, epoch(TIMESTAMP '2020-01-01'), time_bucket(INTERVAL 1 DAY, TIMESTAMP '2020-01-01 10:00:00')
SELECT range, g FROM range(3) r(range), generate_series(1, 2) s(g)
SELECT i FROM generate_series(DATE '2020-01-01', DATE '2020-01-03', INTERVAL 1 DAY) t(i)
SELECT CASE WHEN id = 1 THEN 'one' WHEN town IS NULL THEN 'none' ELSE town END, coalesce(town, '-'), nullif(id, 2), if(id > 2, 'x', 'y') FROM people
SELECT name FROM people WHERE name LIKE '%e' ESCAPE '$' OR name ILIKE 'D%' OR name SIMILAR TO 'a.*' OR regexp_matches(name, '^b') OR name GLOB 'c*'
SELECT name FROM people ORDER BY name COLLATE NOCASE DESC NULLS LAST LIMIT 2 OFFSET 1
SELECT substring(name FROM 2 FOR 1), trim(BOTH 'a' FROM name), position('d' IN name), upper(name), name[1:2], split_part('a-b', '-', 2), printf('%d', id) FROM people
SELECT id % 2, id // 2, 2 ** id, -id, id & 1, id | 8, id << 1, @(-id), round(amount, 1), amount::DECIMAL(10, 2) FROM sales
SELECT median(amount), quantile_cont(amount, 0.25), round(stddev_pop(amount), 6), arg_max(id, amount), count(DISTINCT kind), mode(kind ORDER BY kind), approx_count_distinct(kind), bool_or(id > 3) FROM sales
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY amount) FROM sales
SELECT TRY_CAST(name AS INTEGER), typeof(id), md5(name), hash(id) = hash(id), encode('a'), base64('a'::BLOB) FROM people
SELECT max(id) + 1 AS m, m * 2 AS twice FROM people
SELECT (id, name) IN ((1, 'ada')), (id, name) = (1, 'ada') FROM people
SELECT column_name, column_type FROM (DESCRIBE people)
DESCRIBE SELECT id, name FROM people
WITH t AS (SELECT 9 z) SELECT * FROM (DESCRIBE t)
SELECT "max" FROM (SUMMARIZE SELECT id FROM people)
SELECT id FROM people ORDER BY id LIMIT 50%
SELECT count(*) FROM people TABLESAMPLE 100%
SELECT id FROM people WHERE id NOT BETWEEN 2 AND 3 AND town IS DISTINCT FROM 'oslo'
SELECT 1 AS "select", 'it''s', $$a ' b$$, e'\\n', 0x1F, 1_000, 1e3, 'é → 日本'
SELECT -- a comment
SELECT count(*) FROM people /* a comment ' with ( signs */ WHERE id > 0; -- and another
SELECT count(*) FROM people, people p2, people p3 WHERE people.id = p2.id AND p3.id = 1
SELECT current_date > DATE '2020-01-01', now() IS NOT NULL, length(uuid()::VARCHAR), random() < 1
SELECT (1, (2, (3, (4, (5, (6, (7, 8)))))))
SELECT town.upper(), people.town.upper().lower(), 'x'.upper() FROM people
WITH q AS (FROM people) SELECT q.town.replace('o', '0') FROM q WHERE town.length() > 3
SHOW people
SELECT column_name FROM (SHOW sales)
SELECT repeat(name, id), name.repeat(2), repeat([id], 2), repeat('x', 2000), repeat(NULL, 2), repeat('e'::BLOB, 2) FROM people
SELECT range(id), range(id, 5), range(10, 0, -3), generate_series(1, id), range(0), range(NULL), len(range(2000)), range(-1) FROM people
SELECT generate_series(born::DATE, born::DATE + 2, INTERVAL 1 DAY), range(TIMESTAMP '2020-01-03', TIMESTAMP '2020-01-01', INTERVAL '-1' HOUR) FROM people
SELECT lpad(name, 5, '-'), rpad(name, 2000, 'xy'), list_resize(tags, 3), list_resize(tags, 200, 'q'), array_resize([1], 2), bitstring('101', 10) FROM people
SELECT printf('%d %s %5.2f %%', id, name, 2.5), printf('x'), format('{} {:>10}', id, name), format('{{}} {}', name), printf('%200d', id) FROM people
SELECT replace(name, 'a', repeat('b', 100)), regexp_replace(name, 'a', 'b', 'g'), regexp_replace(name, '(.)', '\\1!'), replace(name, '', 'x') FROM people
SELECT list_transform([1, 2], lambda n: repeat('ab', n)), unnest(range(3)) FROM people
SELECT repeat('a', id) AS a, count(*) FROM people GROUP BY repeat('a', id) HAVING repeat('a', id) <> 'aa'
SELECT list(tags), list({'a': name, 'b': [[id]]}), string_agg(name, ', ' ORDER BY id), MAP {name: 1} FROM people GROUP BY ALL
SELECT repeat(name, 2), repeat(name, 2) FROM people
""".strip().split("\n")  # noqa: E501
QUERIES = [query for query in QUERIES if query != "SELECT -- a comment"]


def answers(table):
    return table.column_names, sorted(map(repr, table.to_pylist()))


def test_there_are_enough_of_them():
    assert len(set(QUERIES)) >= 80


@pytest.mark.parametrize("query", QUERIES)
def test_an_ordinary_query_answers_as_duckdb_does(both, query):
    lake, plain = both
    assert answers(lake.sql(query)) == answers(plain.sql(query).to_arrow_table())


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id FROM sales ORDER BY -id",
        "FROM (VALUES (3), (1)) t(n) ORDER BY n",
        "SELECT repeat('a', (10 - id)::INT) FROM sales ORDER BY id DESC",
    ],
)
def test_the_order_of_rows_is_the_one_asked_for(both, query):
    lake, plain = both
    assert lake.sql(query).to_pylist() == plain.sql(query).to_arrow_table().to_pylist()
