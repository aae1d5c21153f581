/* Load generator that speaks Kafka's Produce version 7 itself, to see the broker and not a client.
 *
 *   pipelined HOST PORT partitions TOPIC SECONDS CONNECTIONS SIZE
 *       one connection per partition, each with one batch of one record in flight, acks=all
 *   pipelined HOST PORT tiny TOPIC SECONDS WINDOW SIZE
 *       one connection, one record per request, up to WINDOW requests in flight, acks=1
 *
 * TOPIC must exist.  The answer is one line of JSON on standard output.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX 1024
#define SAMPLES_MAX 20000000
#define ANSWER_BYTES_MAX 4096
#define SILENCE_MS 30000

struct bytes {
    unsigned char *data;
    size_t size, capacity;
};

struct connection {
    int socket;
    struct bytes request;
    double sent_at;
    unsigned char answer[ANSWER_BYTES_MAX];
    size_t received;
};

static double *samples;
static size_t sample_count;

static void die(const char *what)
{
    fprintf(stderr, "pipelined: %s: %s\n", what, errno ? strerror(errno) : "failed");
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

static void put(struct bytes *to, const void *data, size_t size)
{
    if (to->size + size > to->capacity) {
        to->capacity = (to->size + size) * 2;
        to->data = realloc(to->data, to->capacity);
        if (!to->data)
            die("memory");
    }
    memcpy(to->data + to->size, data, size);
    to->size += size;
}

static void put_number(struct bytes *to, uint64_t value, int size)
{
    for (int shift = (size - 1) * 8; shift >= 0; shift -= 8) {
        unsigned char byte = (unsigned char)(value >> shift);
        put(to, &byte, 1);
    }
}

static void put_varint(struct bytes *to, int64_t value)
{
    uint64_t rest = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    do {
        unsigned char byte = (unsigned char)((rest & 0x7f) | (rest > 0x7f ? 0x80 : 0));
        put(to, &byte, 1);
        rest >>= 7;
    } while (rest);
}

static void put_string(struct bytes *to, const char *text)
{
    put_number(to, strlen(text), 2);
    put(to, text, strlen(text));
}

static void set_number(unsigned char *at, uint32_t value)
{
    at[0] = (unsigned char)(value >> 24), at[1] = (unsigned char)(value >> 16);
    at[2] = (unsigned char)(value >> 8), at[3] = (unsigned char)value;
}

static uint32_t number_at(const unsigned char *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static uint32_t crc32c(const unsigned char *data, size_t size)
{
    uint32_t crc = ~0U;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0x82f63b78U & -(crc & 1));
    }
    return ~crc;
}

/* One record batch (magic 2) of one record without key or headers. */
static void put_batch(struct bytes *to, size_t value_size)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    uint64_t timestamp = (uint64_t)at.tv_sec * 1000 + (uint64_t)at.tv_nsec / 1000000;
    struct bytes record = {0};
    put_number(&record, 0, 1);
    put_varint(&record, 0);
    put_varint(&record, 0);
    put_varint(&record, -1);
    put_varint(&record, (int64_t)value_size);
    for (size_t i = 0; i < value_size; i++)
        put_number(&record, '!' + i * 7 % 90, 1);
    put_varint(&record, 0);

    size_t start = to->size;
    put_number(to, 0, 8);
    put_number(to, 0, 4);
    put_number(to, 0xffffffff, 4);
    put_number(to, 2, 1);
    put_number(to, 0, 4);
    size_t covered = to->size;
    put_number(to, 0, 2);
    put_number(to, 0, 4);
    put_number(to, timestamp, 8);
    put_number(to, timestamp, 8);
    put_number(to, ~0ULL, 8);
    put_number(to, 0xffff, 2);
    put_number(to, 0xffffffff, 4);
    put_number(to, 1, 4);
    put_varint(to, (int64_t)record.size);
    put(to, record.data, record.size);
    free(record.data);
    set_number(to->data + start + 8, (uint32_t)(to->size - start - 12));
    set_number(to->data + covered - 4, crc32c(to->data + covered, to->size - covered));
}

static void put_request(struct bytes *to, const char *topic, uint32_t partition, int acks,
                        size_t value_size)
{
    struct bytes batch = {0};
    put_batch(&batch, value_size);
    size_t start = to->size;
    put_number(to, 0, 4);
    put_number(to, 0, 2);
    put_number(to, 7, 2);
    put_number(to, 0, 4);
    put_string(to, "load");
    put_number(to, 0xffff, 2);
    put_number(to, (uint64_t)acks, 2);
    put_number(to, 30000, 4);
    put_number(to, 1, 4);
    put_string(to, topic);
    put_number(to, 1, 4);
    put_number(to, partition, 4);
    put_number(to, batch.size, 4);
    put(to, batch.data, batch.size);
    free(batch.data);
    set_number(to->data + start, (uint32_t)(to->size - start - 4));
}

/* The answer holds one topic and one partition; its error code follows name and index. */
static void check_answer(const unsigned char *frame, size_t size)
{
    size_t name_size = (size_t)frame[12] << 8 | frame[13];
    size_t error_at = 14 + name_size + 8;
    errno = 0;
    if (error_at + 2 > size)
        die("short Produce answer");
    int error = frame[error_at] << 8 | frame[error_at + 1];
    if (error) {
        fprintf(stderr, "pipelined: the broker answered error %d\n", error);
        exit(1);
    }
}

static int dial(const char *host, const char *port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    if (inet_pton(AF_INET, host, &to.sin_addr) != 1)
        die("HOST is an IPv4 address");
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to))
        die("connect");
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void send_all(int fd, const unsigned char *data, size_t size)
{
    while (size) {
        ssize_t sent = send(fd, data, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            die("send");
        data += sent, size -= (size_t)sent;
    }
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(uint64_t count, double seconds, double cpu_before)
{
    qsort(samples, sample_count, sizeof *samples, ascending);
    double p50 = samples[sample_count / 2], p99 = samples[sample_count * 99 / 100];
    double p999 = samples[sample_count * 999 / 1000], max = samples[sample_count - 1];
    printf("{\"messages\": %llu, \"seconds\": %.6f, \"client_cpu_s\": %.3f, \"p50_us\": %.1f,"
           " \"p90_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"max_us\": %.1f}\n",
           (unsigned long long)count, seconds, cpu() - cpu_before, p50 * 1e6,
           samples[sample_count * 90 / 100] * 1e6, p99 * 1e6, p999 * 1e6, max * 1e6);
}

static void add_sample(double seconds)
{
    if (sample_count < SAMPLES_MAX)
        samples[sample_count++] = seconds;
}

/* Take what arrived; true when the one answer in flight is complete. */
static int receive_answer(struct connection *peer)
{
    ssize_t got = recv(peer->socket, peer->answer + peer->received,
                       sizeof peer->answer - peer->received, 0);
    if (got <= 0)
        die("the broker hung up");
    peer->received += (size_t)got;
    if (peer->received < 4)
        return 0;
    size_t size = number_at(peer->answer) + 4;
    if (size > sizeof peer->answer || size < 30)
        die("answer of unexpected size");
    if (peer->received < size)
        return 0;
    check_answer(peer->answer, size);
    peer->received = 0;
    return 1;
}

static void run_partitions(const char *host, const char *port, const char *topic, int count,
                           double seconds, size_t size)
{
    struct connection *peers = calloc((size_t)count, sizeof *peers);
    int poller = epoll_create1(0);
    for (int i = 0; i < count; i++) {
        peers[i].socket = dial(host, port);
        put_request(&peers[i].request, topic, (uint32_t)i, -1, size);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &peers[i]};
        epoll_ctl(poller, EPOLL_CTL_ADD, peers[i].socket, &event);
    }
    double cpu_before = cpu(), start = now(), end = start + seconds;
    for (int i = 0; i < count; i++) {
        peers[i].sent_at = now();
        send_all(peers[i].socket, peers[i].request.data, peers[i].request.size);
    }
    int open = count;
    uint64_t done = 0;
    while (open) {
        struct epoll_event events[64];
        errno = 0;
        int ready = epoll_wait(poller, events, 64, SILENCE_MS);
        if (ready <= 0)
            die("no answer within 30 s");
        for (int i = 0; i < ready; i++) {
            struct connection *peer = events[i].data.ptr;
            if (!receive_answer(peer))
                continue;
            double at = now();
            add_sample(at - peer->sent_at);
            done++;
            if (at >= end) {
                open--;
                continue;
            }
            peer->sent_at = at;
            send_all(peer->socket, peer->request.data, peer->request.size);
        }
    }
    report(done, now() - start, cpu_before);
}

/* Count whole answers in `data`; gives the bytes they took. */
static size_t take_answers(const unsigned char *data, size_t size, uint64_t *answers)
{
    size_t at = 0;
    while (size - at >= 4) {
        size_t frame = number_at(data + at) + 4;
        if (frame > ANSWER_BYTES_MAX || frame < 30)
            die("answer of unexpected size");
        if (size - at < frame)
            break;
        check_answer(data + at, frame);
        ++*answers;
        at += frame;
    }
    return at;
}

static void run_tiny(const char *host, const char *port, const char *topic, double seconds,
                     uint64_t window, size_t size)
{
    int fd = dial(host, port);
    struct bytes one = {0}, many = {0};
    put_request(&one, topic, 0, 1, size);
    for (uint64_t i = 0; i < window; i++)
        put(&many, one.data, one.size);
    double *sent_at = malloc(window * sizeof *sent_at);
    size_t capacity = 1 << 20, held = 0, offset = 0;
    unsigned char *received = malloc(capacity);
    uint64_t sent = 0, answered = 0;
    int sending = 1;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    double cpu_before = cpu(), start = now();
    while (sending || answered < sent) {
        uint64_t open = window - (sent - answered);
        if (now() - start >= seconds) {
            /* A request that has begun to leave must be finished, no other is begun. */
            open = offset ? 1 : 0;
            sending = offset != 0;
            if (!sending && answered == sent)
                break;
        }
        if (sending && open) {
            /* `offset` bytes of the next request have left already. */
            ssize_t wrote = send(fd, many.data + offset, open * one.size - offset, MSG_NOSIGNAL);
            if (wrote < 0 && errno != EAGAIN && errno != EINTR)
                die("send");
            if (wrote > 0) {
                uint64_t whole = ((uint64_t)wrote + offset) / one.size;
                double at = now();
                for (uint64_t i = 0; i < whole; i++)
                    sent_at[(sent + i) % window] = at;
                sent += whole;
                offset = ((size_t)wrote + offset) % one.size;
            }
        }
        int more = sending && sent - answered < window;
        struct pollfd ready = {.fd = fd, .events = (short)(POLLIN | (more ? POLLOUT : 0))};
        errno = 0;
        if (poll(&ready, 1, SILENCE_MS) <= 0)
            die("no answer within 30 s");
        if (!(ready.revents & POLLIN))
            continue;
        ssize_t got = recv(fd, received + held, capacity - held, 0);
        if (got <= 0)
            die("the broker hung up");
        held += (size_t)got;
        uint64_t before = answered;
        size_t used = take_answers(received, held, &answered);
        memmove(received, received + used, held - used);
        held -= used;
        double at = now();
        for (uint64_t i = before; i < answered; i++)
            add_sample(at - sent_at[i % window]);
    }
    report(answered, now() - start, cpu_before);
}

int main(int argc, char **argv)
{
    errno = 0;
    if (argc != 8)
        die("usage: pipelined HOST PORT partitions|tiny TOPIC SECONDS CONNECTIONS|WINDOW SIZE");
    double seconds = atof(argv[5]);
    long number = atol(argv[6]);
    long size = atol(argv[7]);
    if (seconds <= 0 || number < 1 || size < 1)
        die("numbers must be positive");
    samples = malloc(sizeof *samples * SAMPLES_MAX);
    if (!samples)
        die("memory");
    if (!strcmp(argv[3], "partitions")) {
        if (number > CONNECTIONS_MAX)
            die("more than 1024 connections");
        run_partitions(argv[1], argv[2], argv[4], (int)number, seconds, (size_t)size);
    } else if (!strcmp(argv[3], "tiny")) {
        run_tiny(argv[1], argv[2], argv[4], seconds, (uint64_t)number, (size_t)size);
    } else {
        die("mode must be partitions or tiny");
    }
    return 0;
}
