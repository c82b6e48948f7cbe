-- Indexes for the bucket `travel`, into which `make run` loads the airports of the world:
--
--   type ('airport'), icao, iata, lid, name, city, subd, country, elevation (feet), lat, lon, tz
--
-- Fields that an airport does not have are missing. All indexes are deferred, so that one pass over
-- the documents builds them all:
--
--   indexctl apply examples/travel.sql
--   indexctl build --bucket travel --wait
--
-- Each statement says IF NOT EXISTS: carrying this file out again does no harm. Everything fits a
-- cluster of three indexers.

-- All documents by their ids, for administration and for what no other index covers.
CREATE PRIMARY INDEX IF NOT EXISTS ON travel
    WITH {"defer_build": true};

/* Look-ups */

-- By code: the most frequent ones. A replica keeps them going when an indexer fails.
CREATE INDEX IF NOT EXISTS by_iata ON travel(iata)
    WHERE iata IS NOT MISSING
    WITH {"replicas": 1, "defer_build": true};

-- Where: composite keys are scanned by any number of their first components.
CREATE INDEX IF NOT EXISTS by_city ON travel(country, city, name)
    WITH {"defer_build": true};

-- A search box that ignores case needs the same expression in the query.
CREATE INDEX IF NOT EXISTS by_name ON travel(LOWER(name))
    WHERE type = 'airport' AND name IS NOT NULL
    WITH {"slices": 3, "defer_build": true};

/* Ranges */

-- Whole degrees make a coarse grid: "which airports are near?" is a few equality look-ups.
CREATE INDEX IF NOT EXISTS by_grid ON travel(FLOOR(lat), FLOOR(lon))
    WHERE lat BETWEEN -90 AND 90
    WITH {"defer_build": true};

-- The highest first, among those that are high.
CREATE INDEX IF NOT EXISTS high ON travel(elevation DESC, country)
    WHERE elevation > 8000
    USING gsi
    WITH {"defer_build": true};

-- Slices by ranges of the key: a scan of one country asks one indexer.
CREATE INDEX IF NOT EXISTS by_country ON travel(country, subd)
    WITH {"partitioning": "range", "bounds": [["F"], ["R"]], "defer_build": true};

-- Only a monthly report needs this one: define it now, build it when it is wanted.
CREATE INDEX IF NOT EXISTS by_height
    ON travel(CASE WHEN elevation < 1000 THEN 'low' WHEN elevation < 5000 THEN 'middle' ELSE 'high' END,
              tz)
    WITH {"slices": 2, "replicas": 1, "defer_build": true};
