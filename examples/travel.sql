-- Indexes for a bucket `travel` that holds three kinds of documents, told apart by `type`:
--
--   airport  name, city, country, faa, icao, tz, geo.lat, geo.lon, geo.alt
--   airline  name, callsign, country, iata, icao
--   route    airlineid, sourceairport, destinationairport, equipment, stops, distance
--
-- Each statement says IF NOT EXISTS, so carrying this file out again does no harm:
--
--   indexctl apply examples/travel.sql
--
-- Everything fits a cluster of three indexers.

-- All documents by their keys, for administration and for what no other index covers.
CREATE PRIMARY INDEX IF NOT EXISTS ON travel;

-- The discriminator alone: counts, and scans of one kind of document.
CREATE INDEX IF NOT EXISTS by_type ON travel(type);

/* Airports */

-- Look-ups by code are the most frequent: a replica keeps them going when an indexer fails.
CREATE INDEX IF NOT EXISTS airport_by_faa ON travel(faa)
    WHERE type = 'airport'
    WITH {"replicas": 1};

CREATE INDEX IF NOT EXISTS airport_by_city ON travel(country, city, name)
    WHERE type = 'airport';

-- A search box that ignores case needs the same expression in the query.
CREATE INDEX IF NOT EXISTS airport_by_name ON travel(LOWER(name))
    WHERE type = 'airport' AND name IS NOT NULL;

-- Whole degrees make a coarse grid: "which airports are near?" is a few equality look-ups.
CREATE INDEX IF NOT EXISTS airport_by_grid ON travel(FLOOR(geo.lat), FLOOR(geo.lon), geo.alt DESC)
    WHERE type = 'airport' AND geo.lat BETWEEN -90 AND 90;

/* Airlines */

CREATE INDEX IF NOT EXISTS airline_by_iata ON travel(iata, icao)
    WHERE type = 'airline';

-- Many airlines have no call sign: leave them out, and group the rest by country.
CREATE INDEX IF NOT EXISTS airline_by_callsign ON travel(country, UPPER(callsign))
    WHERE type = 'airline' AND callsign IS NOT NULL AND callsign <> '';

/* Routes: by far the most documents */

-- From here to there. Three slices spread the index over three indexers.
CREATE INDEX IF NOT EXISTS route_by_airports ON travel(sourceairport, destinationairport, airlineid)
    WHERE type = 'route'
    USING gsi
    WITH {"slices": 3};

-- Non-stop flights only, the longest first.
CREATE INDEX IF NOT EXISTS route_nonstop ON travel(sourceairport, distance DESC)
    WHERE type = 'route' AND stops = 0;

-- Spread and replicated: every airline's page asks for its routes.
CREATE INDEX IF NOT EXISTS route_by_airline ON travel(airlineid, sourceairport)
    WHERE type = 'route'
    WITH {"slices": 2, "replicas": 1};

-- Only a monthly report needs this one: define it now, build it when it is wanted.
CREATE INDEX IF NOT EXISTS route_by_length
    ON travel(CASE WHEN distance < 1500 THEN 'short' WHEN distance < 4000 THEN 'medium' ELSE 'long' END,
              equipment)
    WHERE type = 'route' AND distance > 0
    WITH {"defer_build": true};
