"""The drivers of calls: sessions, routes and the parts that all calls share."""
