/* Load generator on librdkafka: produce, consume, one-in-flight latency, groups, transactions.
 *
 *   load LIBRARY ADDRESS produce TOPIC SECONDS SIZE [NAME=VALUE ...]
 *   load LIBRARY ADDRESS fill    TOPIC COUNT SIZE [NAME=VALUE ...]
 *   load LIBRARY ADDRESS consume TOPIC SECONDS COUNT [NAME=VALUE ...]
 *   load LIBRARY ADDRESS latency TOPIC SECONDS SIZE [NAME=VALUE ...]
 *   load LIBRARY ADDRESS group   TOPIC SECONDS COUNT EVERY [NAME=VALUE ...]
 *   load LIBRARY ADDRESS transactions TOPIC SECONDS SIZE EVERY [NAME=VALUE ...]
 *
 * `produce` sends for that long and then waits for what is in flight; `consume` reads the first
 * COUNT records again and again until the time is over; `latency` keeps one record in flight.
 * `group` consumes like `consume`, but as the one member of a group, and waits for a commit after
 * EVERY records; each pass is timed from its first record.  `transactions` commits a transaction
 * after EVERY records and has one at a time.
 * LIBRARY is the path of a librdkafka shared library; it is opened at run time and the few
 * functions needed are declared here, so neither headers nor a development package are required.
 * TOPIC may be several names separated by commas: produce deals messages out in turn.
 * NAME=VALUE are librdkafka settings.  The answer is one line of JSON on standard output.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define TOPICS_MAX 64
#define CONSUME_BATCH 4096
#define LATENCY_TIMEOUT_MS 10000
#define COORDINATOR_TIMEOUT_MS 60000
#define SAMPLES_MAX 4000000

enum { RD_KAFKA_PRODUCER = 0, RD_KAFKA_CONSUMER = 1 };
enum { OFFSET_BEGINNING = -2, MSG_F_COPY = 2, ERR_QUEUE_FULL = -184, CONF_OK = 0 };

/* The public part of rd_kafka_message_t, stable since 0.9. */
struct message {
    int error;
    void *topic;
    int32_t partition;
    void *payload;
    size_t size;
    void *key;
    size_t key_size;
    int64_t offset;
    void *opaque;
};

/* rd_kafka_topic_partition_t and its list, as far as they are public. */
struct place {
    char *topic;
    int32_t partition;
    int64_t offset;
    void *metadata;
    size_t metadata_size;
    void *opaque;
    int error;
    void *private;
};

struct places {
    int count, capacity;
    struct place *places;
};

static void *(*conf_new)(void);
static int (*conf_set)(void *, const char *, const char *, char *, size_t);
static void (*conf_set_delivery)(void *, void (*)(void *, const struct message *, void *));
static void *(*client_new)(int, void *, char *, size_t);
static void *(*topic_new)(void *, const char *, void *);
static int (*produce)(void *, int32_t, int, void *, size_t, const void *, size_t, void *);
static int (*client_poll)(void *, int);
static int (*last_error)(void);
static const char *(*error_text)(int);
static int (*metadata)(void *, int, void *, const void **, int);
static void (*metadata_destroy)(const void *);
static int (*consume_start)(void *, int32_t, int64_t);
static int (*consume_stop)(void *, int32_t);
static ssize_t (*consume_batch)(void *, int32_t, int, struct message **, size_t);
static void (*message_destroy)(struct message *);
static struct places *(*places_new)(int);
static struct place *(*places_add)(struct places *, const char *, int32_t);
static int (*poll_set_consumer)(void *);
static int (*subscribe)(void *, const struct places *);
static void *(*consumer_queue)(void *);
static ssize_t (*consume_queue)(void *, int, struct message **, size_t);
static int (*commit)(void *, const struct places *, int);
static int (*seek)(void *, int32_t, int64_t, int);
static void *(*init_transactions)(void *, int);
static void *(*begin_transaction)(void *);
static void *(*commit_transaction)(void *, int);
static const char *(*error_string)(void *);

static int64_t delivered, failed;
static int first_failure, idempotent;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "load: %s: %s\n", what, why);
    exit(1);
}

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

static double cpu(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec)
        + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
}

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found)
        die(name, "not in this librdkafka");
    return found;
}

static void open_library(const char *path)
{
    void *library = dlopen(path, RTLD_NOW);
    if (!library)
        die(path, dlerror());
    conf_new = symbol(library, "rd_kafka_conf_new");
    conf_set = symbol(library, "rd_kafka_conf_set");
    conf_set_delivery = symbol(library, "rd_kafka_conf_set_dr_msg_cb");
    client_new = symbol(library, "rd_kafka_new");
    topic_new = symbol(library, "rd_kafka_topic_new");
    produce = symbol(library, "rd_kafka_produce");
    client_poll = symbol(library, "rd_kafka_poll");
    last_error = symbol(library, "rd_kafka_last_error");
    error_text = symbol(library, "rd_kafka_err2str");
    metadata = symbol(library, "rd_kafka_metadata");
    metadata_destroy = symbol(library, "rd_kafka_metadata_destroy");
    consume_start = symbol(library, "rd_kafka_consume_start");
    consume_stop = symbol(library, "rd_kafka_consume_stop");
    consume_batch = symbol(library, "rd_kafka_consume_batch");
    message_destroy = symbol(library, "rd_kafka_message_destroy");
    places_new = symbol(library, "rd_kafka_topic_partition_list_new");
    places_add = symbol(library, "rd_kafka_topic_partition_list_add");
    poll_set_consumer = symbol(library, "rd_kafka_poll_set_consumer");
    subscribe = symbol(library, "rd_kafka_subscribe");
    consumer_queue = symbol(library, "rd_kafka_queue_get_consumer");
    consume_queue = symbol(library, "rd_kafka_consume_batch_queue");
    commit = symbol(library, "rd_kafka_commit");
    seek = symbol(library, "rd_kafka_seek");
    init_transactions = symbol(library, "rd_kafka_init_transactions");
    begin_transaction = symbol(library, "rd_kafka_begin_transaction");
    commit_transaction = symbol(library, "rd_kafka_commit_transaction");
    error_string = symbol(library, "rd_kafka_error_string");
}

static void on_delivery(void *client, const struct message *message, void *opaque)
{
    (void)client, (void)opaque;
    delivered++;
    if (message->error) {
        if (!failed++)
            first_failure = message->error;
    }
}

static void *connect_to(int kind, const char *address, int count, char **settings)
{
    char why[512];
    void *conf = conf_new();
    if (conf_set(conf, "bootstrap.servers", address, why, sizeof why) != CONF_OK)
        die("bootstrap.servers", why);
    for (int i = 0; i < count; i++) {
        char *value = strchr(settings[i], '=');
        if (!value)
            die(settings[i], "settings are NAME=VALUE");
        *value++ = 0;
        if (conf_set(conf, settings[i], value, why, sizeof why) != CONF_OK)
            die(settings[i], why);
        idempotent |= !strcmp(settings[i], "enable.idempotence") && !strcmp(value, "true");
    }
    if (kind == RD_KAFKA_PRODUCER)
        conf_set_delivery(conf, on_delivery);
    void *client = client_new(kind, conf, why, sizeof why);
    if (!client)
        die("client", why);
    return client;
}

/* Ask for each topic's metadata, so that the clock does not count the first connection. */
static int open_topics(void *client, char *names, void **topics)
{
    int count = 0;
    for (char *name = strtok(names, ","); name; name = strtok(NULL, ",")) {
        if (count == TOPICS_MAX)
            die(name, "more than 64 topics");
        topics[count] = topic_new(client, name, NULL);
        const void *answer;
        int error = metadata(client, 0, topics[count], &answer, 30000);
        if (error)
            die(name, error_text(error));
        metadata_destroy(answer);
        count++;
    }
    return count;
}

/* Payloads that differ from each other and do not repeat, so that nothing compresses by chance. */
static char *noise(size_t size)
{
    char *bytes = malloc(size ? size : 1);
    uint64_t state = 88172645463325252ULL;
    for (size_t i = 0; i < size; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        bytes[i] = (char)('!' + state % 90);
    }
    return bytes;
}

static void await_delivered(void *client, int64_t count)
{
    double patience = now() + 120;
    while (delivered < count) {
        client_poll(client, 100);
        if (now() > patience)
            die("produce", "not all messages were acknowledged within 120 s");
    }
}

/* Until `seconds` are over, or `count` messages are sent. */
static void run_produce(void *client, void **topics, int topic_count, double seconds,
                        int64_t count, size_t size)
{
    size_t spread = 1 << 16;
    char *bytes = noise(size + spread);
    int64_t sent = 0, early = 0;
    if (idempotent) {
        /* The library may sleep half a second before it asks for its producer id. */
        if (produce(topics[0], 0, MSG_F_COPY, bytes, size, NULL, 0, NULL))
            die("produce", error_text(last_error()));
        await_delivered(client, ++early);
    }
    double cpu_before = cpu(), start = now();
    while (sent < count) {
        void *topic = topics[topic_count == 1 ? 0 : sent % topic_count];
        char *payload = bytes + (sent * 31) % spread;
        while (produce(topic, 0, MSG_F_COPY, payload, size, NULL, 0, NULL)) {
            if (last_error() != ERR_QUEUE_FULL)
                die("produce", error_text(last_error()));
            client_poll(client, 5);
        }
        if (++sent % 256 == 0) {
            client_poll(client, 0);
            if (now() - start >= seconds)
                break;
        }
    }
    await_delivered(client, sent + early);
    double took = now() - start;
    if (failed)
        die("delivery", error_text(first_failure));
    printf("{\"messages\": %lld, \"offsets\": %lld, \"seconds\": %.6f, \"client_cpu_s\": %.3f}\n",
           (long long)sent, (long long)(sent + early), took, cpu() - cpu_before);
}

static void run_consume(void *topic, double seconds, int64_t count)
{
    static struct message *messages[CONSUME_BATCH];
    int64_t bytes = 0;
    int passes = 0;
    double cpu_before = cpu(), took = 0;
    for (; took < seconds; passes++) {
        int64_t seen = 0;
        double start = now();
        if (consume_start(topic, 0, OFFSET_BEGINNING))
            die("consume", error_text(last_error()));
        while (seen < count) {
            /* It waits for a full batch, so never ask for more than is still to come. */
            int64_t rest = count - seen;
            size_t wanted = rest < CONSUME_BATCH ? (size_t)rest : CONSUME_BATCH;
            ssize_t got = consume_batch(topic, 0, 1000, messages, wanted);
            if (got < 0)
                die("consume", error_text(last_error()));
            for (ssize_t i = 0; i < got; i++) {
                if (messages[i]->error)
                    die("message", error_text(messages[i]->error));
                if (messages[i]->offset != seen)
                    die("consume", "offsets are not in order");
                bytes += (int64_t)messages[i]->size;
                seen++;
                message_destroy(messages[i]);
            }
            if (now() - start > 120)
                die("consume", "the records asked for did not come within 120 s");
        }
        took += now() - start;
        consume_stop(topic, 0);
    }
    printf("{\"messages\": %lld, \"bytes\": %lld, \"seconds\": %.6f, \"client_cpu_s\": %.3f}\n",
           (long long)(count * passes), (long long)bytes, took, cpu() - cpu_before);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The end of a line of JSON. */
static void print_percentiles(double *took, size_t count)
{
    qsort(took, count, sizeof *took, ascending);
    printf(", \"p50_us\": %.1f, \"p90_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f,"
           " \"max_us\": %.1f}\n",
           took[count / 2] * 1e6, took[count * 90 / 100] * 1e6, took[count * 99 / 100] * 1e6,
           took[count * 999 / 1000] * 1e6, took[count - 1] * 1e6);
}

static void run_latency(void *client, void *topic, double seconds, size_t size)
{
    char *bytes = noise(size);
    double *took = malloc(SAMPLES_MAX * sizeof *took);
    size_t count = 0;
    double cpu_before = cpu(), begin = now();
    while (count < SAMPLES_MAX && now() - begin < seconds) {
        double start = now();
        if (produce(topic, 0, MSG_F_COPY, bytes, size, NULL, 0, NULL))
            die("produce", error_text(last_error()));
        while (delivered <= (int64_t)count) {
            client_poll(client, 1000);
            if (now() - start > LATENCY_TIMEOUT_MS * 1e-3)
                die("latency", "no acknowledgement within 10 s");
        }
        took[count++] = now() - start;
    }
    double whole = now() - begin;
    if (failed)
        die("delivery", error_text(first_failure));
    printf("{\"messages\": %zu, \"seconds\": %.6f, \"client_cpu_s\": %.3f", count, whole,
           cpu() - cpu_before);
    print_percentiles(took, count);
}

/* One pass of a group's only member: COUNT records, a commit awaited after every `every`. */
static double group_pass(void *client, void *queue, struct places *at, int64_t count,
                         int64_t every, int64_t *commits)
{
    static struct message *messages[CONSUME_BATCH];
    int64_t seen = 0, committed = 0;
    double asked = now(), start = 0;
    while (seen < count) {
        /* The first record alone starts the clock: before it, members join and positions move. */
        int64_t wanted = (committed + every < count ? committed + every : count) - seen;
        wanted = !seen ? 1 : wanted < CONSUME_BATCH ? wanted : CONSUME_BATCH;
        ssize_t got = consume_queue(queue, 1000, messages, (size_t)wanted);
        if (got < 0)
            die("consume", error_text(last_error()));
        for (ssize_t i = 0; i < got; i++) {
            if (messages[i]->error)
                die("message", error_text(messages[i]->error));
            if (messages[i]->offset != seen)
                die("consume", "offsets are not in order");
            if (!seen++)
                start = now();
            message_destroy(messages[i]);
        }
        if (seen == committed + every || seen == count) {
            at->places[0].offset = seen;
            int error = commit(client, at, 0);
            if (error)
                die("commit", error_text(error));
            committed = seen;
            ++*commits;
        }
        if (now() - asked > 120)
            die("consume", "the records asked for did not come within 120 s");
    }
    return now() - start;
}

static void run_group(void *client, void *topic, const char *name, double seconds, int64_t count,
                      int64_t every)
{
    struct places *wanted = places_new(1), *at = places_new(1);
    places_add(wanted, name, -1);
    places_add(at, name, 0);
    poll_set_consumer(client);
    int error = subscribe(client, wanted);
    if (error)
        die("subscribe", error_text(error));
    void *queue = consumer_queue(client);
    int64_t commits = 0;
    int passes = 0;
    double cpu_before = cpu(), took = 0;
    while (took < seconds) {
        if (passes && (error = seek(topic, 0, 0, COORDINATOR_TIMEOUT_MS)))
            die("seek", error_text(error));
        took += group_pass(client, queue, at, count, every, &commits);
        passes++;
    }
    printf("{\"messages\": %lld, \"commits\": %lld, \"seconds\": %.6f, \"client_cpu_s\": %.3f}\n",
           (long long)((count - 1) * passes), (long long)commits, took, cpu() - cpu_before);
}

static void must(const char *what, void *error)
{
    if (error)
        die(what, error_string(error));
}

static void run_transactions(void *client, void *topic, double seconds, size_t size, int64_t every)
{
    size_t spread = 1 << 16;
    char *bytes = noise(size + spread);
    double *took = malloc(SAMPLES_MAX * sizeof *took);
    size_t count = 0;
    int64_t sent = 0;
    must("init transactions", init_transactions(client, COORDINATOR_TIMEOUT_MS));
    double cpu_before = cpu(), begin = now();
    while (count < SAMPLES_MAX && now() - begin < seconds) {
        double start = now();
        must("begin", begin_transaction(client));
        for (int64_t i = 0; i < every; i++, sent++) {
            char *payload = bytes + (sent * 31) % spread;
            if (produce(topic, 0, MSG_F_COPY, payload, size, NULL, 0, NULL))
                die("produce", error_text(last_error()));
        }
        must("commit", commit_transaction(client, COORDINATOR_TIMEOUT_MS));
        took[count++] = now() - start;
    }
    double whole = now() - begin;
    client_poll(client, 0);
    if (failed)
        die("delivery", error_text(first_failure));
    /* Each commit leaves a control record, and those take offsets too. */
    printf("{\"messages\": %lld, \"transactions\": %zu, \"offsets\": %lld, \"seconds\": %.6f,"
           " \"client_cpu_s\": %.3f",
           (long long)sent, count, (long long)sent + (long long)count, whole, cpu() - cpu_before);
    print_percentiles(took, count);
}

int main(int argc, char **argv)
{
    if (argc < 7)
        die("usage", "load LIBRARY ADDRESS MODE TOPIC SECONDS|COUNT SIZE|COUNT [EVERY]"
                     " [NAME=VALUE ...]");
    const char *mode = argv[3];
    double seconds = atof(argv[5]);
    int64_t number = atoll(argv[6]);
    int grouped = !strcmp(mode, "group"), transactional = !strcmp(mode, "transactions");
    int used = grouped || transactional ? 8 : 7;
    int64_t every = used == 8 && argc > 7 ? atoll(argv[7]) : 1;
    if (seconds <= 0 || number < 1 || every < 1 || argc < used)
        die("usage", "SECONDS, COUNT, SIZE and EVERY are above 0");
    open_library(argv[1]);
    int consuming = grouped || !strcmp(mode, "consume");
    void *client = connect_to(consuming ? RD_KAFKA_CONSUMER : RD_KAFKA_PRODUCER, argv[2],
                              argc - used, argv + used);
    void *topics[TOPICS_MAX];
    int topic_count = open_topics(client, argv[4], topics);
    if (grouped)
        run_group(client, topics[0], argv[4], seconds, number, every);
    else if (consuming)
        run_consume(topics[0], seconds, number);
    else if (!strcmp(mode, "produce"))
        run_produce(client, topics, topic_count, seconds, INT64_MAX, (size_t)number);
    else if (!strcmp(mode, "fill"))
        run_produce(client, topics, topic_count, 600, atoll(argv[5]), (size_t)number);
    else if (!strcmp(mode, "latency"))
        run_latency(client, topics[0], seconds, (size_t)number);
    else if (transactional)
        run_transactions(client, topics[0], seconds, (size_t)number, every);
    else
        die(mode, "is no mode; accepted are produce, fill, consume, latency, group, transactions");
    fflush(stdout);
    /* The broker's CPU time is read when this process ends: no slow farewell. */
    _Exit(0);
}
