/* Load generator for the RustLog protocol, in either dialect.
 *
 *   rustlog HOST PORT produce binary|json TOPIC CONNECTIONS BATCH SIZE REQUESTS
 *       each connection writes REQUESTS times BATCH records of SIZE bytes to a partition of its own,
 *       with up to 64 requests in flight, or 1,000 if they have one record each
 *   rustlog HOST PORT fetch binary|json TOPIC CONNECTIONS BYTES_MAX PASSES
 *       each connection reads a partition of its own from the start to the end, PASSES times
 *
 * TOPIC must exist and have as many partitions as there are connections.  The answer is one line of
 * JSON on standard output.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX 64
#define ANSWER_BYTES_MAX (11 << 20)
#define SILENCE_MS 30000

struct bytes {
    unsigned char *data;
    size_t size, capacity;
};

struct connection {
    int socket;
    uint32_t partition;
    struct bytes out;
    size_t offset;          /* of what is to be sent next, in `out` */
    uint64_t sent, answered; /* produce: requests; fetch: replies */
    unsigned char *in;
    size_t held;
    uint64_t passes;
    int done;
};

static int json;
static const char *topic;
static uint64_t window = 64;
static uint64_t records, requests, errors, wire_bytes;

static void die(const char *what)
{
    fprintf(stderr, "rustlog: %s: %s\n", what, errno ? strerror(errno) : "failed");
    exit(1);
}

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

static void put(struct bytes *to, const void *data, size_t size)
{
    if (to->size + size > to->capacity) {
        to->capacity = 2 * (to->size + size);
        to->data = realloc(to->data, to->capacity);
        if (!to->data)
            die("memory");
    }
    memcpy(to->data + to->size, data, size);
    to->size += size;
}

static void put_number(struct bytes *to, uint64_t number, int size)
{
    unsigned char encoded[8];
    for (int i = 0; i < size; i++)
        encoded[i] = (unsigned char)(number >> 8 * (size - 1 - i));
    put(to, encoded, (size_t)size);
}

static void put_text(struct bytes *to, const char *text)
{
    put(to, text, strlen(text));
}

static void put_base64(struct bytes *to, const unsigned char *data, size_t size)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < size; i += 3) {
        size_t left = size - i;
        uint32_t word = (uint32_t)data[i] << 16 | (left > 1 ? (uint32_t)data[i + 1] << 8 : 0) |
                        (left > 2 ? data[i + 2] : 0);
        char four[4] = {letters[word >> 18], letters[word >> 12 & 63],
                        left > 1 ? letters[word >> 6 & 63] : '=', left > 2 ? letters[word & 63] : '='};
        put(to, four, 4);
    }
}

/* Writes the length of the frame that began at `start`. */
static void end_frame(struct bytes *to, size_t start)
{
    uint32_t size = htonl((uint32_t)(to->size - start - 4));
    memcpy(to->data + start, &size, 4);
}

static void put_produce(struct bytes *to, uint32_t partition, long batch, size_t size)
{
    size_t start = to->size;
    unsigned char *value = malloc(size + 1);
    uint32_t seed = 1;
    char head[512];
    put_number(to, 0, 4);
    if (json) {
        snprintf(head, sizeof head,
                 "{\"type\":\"Produce\",\"topic\":\"%s\",\"partition\":%u,\"records\":[", topic,
                 partition);
        put_text(to, head);
    } else {
        put_number(to, 1, 1);
        put_number(to, strlen(topic), 2);
        put_text(to, topic);
        put_number(to, partition, 4);
        put_number(to, (uint64_t)batch, 4);
    }
    for (long i = 0; i < batch; i++) {
        for (size_t at = 0; at < size; at++) {
            seed = seed * 1103515245 + 12345;
            value[at] = (unsigned char)(seed >> 16);
        }
        if (json) {
            put_text(to, i ? ",\"" : "\"");
            put_base64(to, value, size);
            put_text(to, "\"");
        } else {
            put_number(to, size, 4);
            put(to, value, size);
        }
    }
    if (json)
        put_text(to, "]}");
    end_frame(to, start);
    free(value);
}

static void put_fetch(struct bytes *to, uint32_t partition, uint64_t offset, uint32_t bytes_max)
{
    char text[512];
    to->size = 0;
    put_number(to, 0, 4);
    if (json) {
        snprintf(text, sizeof text,
                 "{\"type\":\"Fetch\",\"group_id\":\"\",\"topic\":\"%s\",\"partition\":%u,"
                 "\"offset\":%" PRIu64 ",\"max_bytes\":%u}",
                 topic, partition, offset, bytes_max);
        put_text(to, text);
    } else {
        put_number(to, 2, 1);
        put_number(to, 0, 2);
        put_number(to, strlen(topic), 2);
        put_text(to, topic);
        put_number(to, partition, 4);
        put_number(to, offset, 8);
        put_number(to, bytes_max, 4);
    }
    end_frame(to, 0);
}

static int dial(const char *host, const char *port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (inet_pton(AF_INET, host, &to.sin_addr) != 1)
        die("host must be an IPv4 address");
    if (connect(fd, (struct sockaddr *)&to, sizeof to))
        die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    return fd;
}

static uint64_t number_at(const unsigned char *at, int size)
{
    uint64_t number = 0;
    for (int i = 0; i < size; i++)
        number = number << 8 | at[i];
    return number;
}

static int is_error(const unsigned char *reply, size_t size)
{
    if (json)
        return size < 16 || memcmp(reply, "{\"type\":\"Error\"", 15) == 0;
    return size == 0 || reply[0] == 0xfe;
}

static void check(const unsigned char *reply, size_t size)
{
    if (!is_error(reply, size))
        return;
    if (!errors++)
        fprintf(stderr, "refused: %.*s\n", (int)(size < 300 ? size : 300), (const char *)reply);
}

/* Takes one Fetch reply and asks for the next; returns 0 at the end of the last pass. */
static int took_fetch(struct connection *one, const unsigned char *reply, size_t size,
                      uint32_t bytes_max)
{
    uint64_t count = 0, next = 0;
    check(reply, size);
    if (json) {
        const unsigned char *at = reply, *end = reply + size;
        while ((at = memmem(at, (size_t)(end - at), "\"payload\":", 10))) {
            count++;
            at += 10;
        }
        at = memrchr(reply, ':', size);
        next = at ? strtoull((const char *)at + 1, NULL, 10) : 0;
    } else {
        count = number_at(reply + 1, 4);
        next = number_at(reply + size - 8, 8);
    }
    records += count;
    if (count == 0) {
        next = 0;
        if (--one->passes == 0)
            return 0;
    }
    put_fetch(&one->out, one->partition, next, bytes_max);
    one->offset = 0;
    return 1;
}

/* Sends what may be sent; returns whether more could be. */
static int push(struct connection *one, int producing, uint64_t total)
{
    if (!producing) {
        if (one->offset < one->out.size) {
            ssize_t wrote = send(one->socket, one->out.data + one->offset,
                                 one->out.size - one->offset, MSG_NOSIGNAL);
            if (wrote < 0 && errno != EAGAIN)
                die("send");
            one->offset += wrote > 0 ? (size_t)wrote : 0;
        }
        return one->offset < one->out.size;
    }
    size_t request = one->out.size / window;
    uint64_t open = window - (one->sent - one->answered);
    if (open > total - one->sent)
        open = total - one->sent;
    if (!open)
        return 0;
    ssize_t wrote = send(one->socket, one->out.data + one->offset, open * request - one->offset,
                         MSG_NOSIGNAL);
    if (wrote < 0 && errno != EAGAIN)
        die("send");
    if (wrote > 0) {
        one->sent += ((size_t)wrote + one->offset) / request;
        one->offset = ((size_t)wrote + one->offset) % request;
        wire_bytes += (uint64_t)wrote;
    }
    return one->sent < total && one->sent - one->answered < window;
}

static void pull(struct connection *one, int producing, uint64_t total, uint32_t bytes_max)
{
    ssize_t got = recv(one->socket, one->in + one->held, ANSWER_BYTES_MAX - one->held, 0);
    size_t used = 0;
    if (got == 0)
        die("the broker hung up");
    if (got < 0) {
        if (errno != EAGAIN)
            die("recv");
        return;
    }
    one->held += (size_t)got;
    if (!producing)
        wire_bytes += (uint64_t)got;
    while (one->held - used >= 4) {
        size_t size = number_at(one->in + used, 4);
        if (one->held - used - 4 < size)
            break;
        requests++;
        one->answered++;
        if (producing)
            check(one->in + used + 4, size);
        else if (!took_fetch(one, one->in + used + 4, size, bytes_max))
            one->done = 1;
        used += 4 + size;
    }
    memmove(one->in, one->in + used, one->held - used);
    one->held -= used;
    if (producing && one->answered == total)
        one->done = 1;
}

int main(int argc, char **argv)
{
    errno = 0;
    int producing = argc == 10 && !strcmp(argv[3], "produce");
    if (!producing && (argc != 9 || strcmp(argv[3], "fetch")))
        die("usage: rustlog HOST PORT produce|fetch binary|json TOPIC CONNECTIONS ...");
    json = !strcmp(argv[4], "json");
    topic = argv[5];
    long count = atol(argv[6]), batch = atol(argv[7]);
    size_t size = producing ? (size_t)atol(argv[8]) : 0;
    uint64_t total = strtoull(argv[argc - 1], NULL, 10);
    if (count < 1 || count > CONNECTIONS_MAX || batch < 1 || total < 1)
        die("numbers must be positive, connections at most 64");
    if (batch == 1)
        window = 1000;
    struct connection all[CONNECTIONS_MAX] = {0};
    struct pollfd ready[CONNECTIONS_MAX];
    for (long i = 0; i < count; i++) {
        struct connection *one = all + i;
        one->socket = dial(argv[1], argv[2]);
        one->partition = (uint32_t)i;
        one->in = malloc(ANSWER_BYTES_MAX);
        one->passes = total;
        if (producing)
            for (uint64_t n = 0; n < window; n++)
                put_produce(&one->out, one->partition, batch, size);
        else
            put_fetch(&one->out, one->partition, 0, (uint32_t)batch);
    }
    double start = now();
    for (long open = count; open;) {
        for (long i = 0; i < count; i++) {
            int more = !all[i].done && push(all + i, producing, total);
            ready[i].fd = all[i].done ? -1 : all[i].socket;
            ready[i].events = (short)(POLLIN | (more ? POLLOUT : 0));
        }
        if (poll(ready, (nfds_t)count, SILENCE_MS) <= 0)
            die("no answer within 30 s");
        open = 0;
        for (long i = 0; i < count; i++) {
            if (!all[i].done && ready[i].revents & (POLLIN | POLLERR | POLLHUP))
                pull(all + i, producing, total, (uint32_t)batch);
            open += !all[i].done;
        }
    }
    double seconds = now() - start;
    if (producing)
        records = (requests - errors) * (uint64_t)batch;
    printf("{\"records\":%" PRIu64 ",\"requests\":%" PRIu64 ",\"errors\":%" PRIu64
           ",\"wire_bytes\":%" PRIu64 ",\"seconds\":%.6f}\n",
           records, requests, errors, wire_bytes, seconds);
    return errors != 0;
}
