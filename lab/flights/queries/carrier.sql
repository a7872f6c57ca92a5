-- title = "A carrier's flights and delays by destination in one month"
-- public = true
-- max_age_s = 3600
-- [parameters]
-- carrier = { type = "text", length_max = 2 }
-- month = { type = "int", min = 1, max = 12 }
-- lab = { type = "text", default = "" }
-- [types]
-- flights = "int"
-- mean_delay = "real"
SELECT dest, count(*) AS flights, avg(arr_delay) AS mean_delay FROM flights
WHERE carrier = :carrier AND month = :month AND :lab = :lab
GROUP BY dest
ORDER BY dest
