"""The broker's port on an Apache Kafka cluster: a client without sockets, threads or clock."""
