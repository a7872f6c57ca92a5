-- title = "Flights from an airport on one day"
-- public = true
-- max_age_s = 3600
-- [parameters]
-- origin = { type = "text", values = ["EWR", "JFK", "LGA"] }
-- month = { type = "int", min = 1, max = 12 }
-- day = { type = "int", min = 1, max = 31 }
-- lab = { type = "text", default = "" }
SELECT carrier, flight, tailnum, dest, sched_dep_time, dep_delay, arr_delay FROM flights
WHERE origin = :origin AND month = :month AND day = :day AND :lab = :lab
ORDER BY sched_dep_time, carrier, flight
