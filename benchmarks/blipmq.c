/* Load for a BlipMQ broker over one connection; prints one line of JSON.

     blipmq HOST PORT KEY publish TOPIC QOS SIZE COUNT FENCE
     blipmq HOST PORT KEY deliver SUBSCRIPTION ACK COUNT ROUND

   publish: COUNT messages without waiting, or with a PING to be answered after every FENCE of them.
   deliver: rounds of ROUND pipelined POLLs, then of ACKs if ACK is 1, each with a PING to be
   answered behind it, until COUNT messages have come. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HELLO = 1, AUTH, PUBLISH, SUBSCRIBE, ACK, NACK, PING, PONG, POLL };
enum { BLOCK_BYTES = 1 << 20, STALL_MS = 60000 };

struct bytes {
    unsigned char *data;
    size_t used, room;
};

static int line;
static struct bytes in;
static uint64_t last_pong;
static long delivered, refused, acks;
static uint64_t *tags;
static size_t tags_used, tags_room;

static void fail(const char *what) {
    fprintf(stderr, "blipmq: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static unsigned char *room(struct bytes *out, size_t size) {
    if (out->used + size > out->room) {
        out->room = 2 * (out->used + size);
        out->data = realloc(out->data, out->room);
        if (!out->data) fail("memory");
    }
    return out->data + out->used;
}

static void number(struct bytes *out, uint64_t value, int size) {
    unsigned char *at = room(out, size);
    for (int place = size - 1; place >= 0; place--, value >>= 8) at[place] = (unsigned char)value;
    out->used += size;
}

static void text(struct bytes *out, const void *data, size_t size) {
    memcpy(room(out, size), data, size);
    out->used += size;
}

static void head(struct bytes *out, int kind, uint64_t correlation, size_t payload) {
    number(out, 9 + payload, 4);
    number(out, kind, 1);
    number(out, correlation, 8);
}

static uint64_t at_be(const unsigned char *at, int size) {
    uint64_t value = 0;
    for (int place = 0; place < size; place++) value = value << 8 | at[place];
    return value;
}

static void take(const unsigned char *frame, size_t length) {
    uint64_t correlation = at_be(frame + 1, 8);
    if (frame[0] == PUBLISH) {
        delivered++;
        if (tags_used == tags_room) {
            tags_room = 2 * tags_room + 1024;
            tags = realloc(tags, tags_room * sizeof *tags);
            if (!tags) fail("memory");
        }
        tags[tags_used++] = correlation;
    } else if (frame[0] == NACK) {
        if (!refused++) fprintf(stderr, "blipmq: %.*s\n", (int)(length - 13), frame + 13);
    } else if (frame[0] == PONG) {
        last_pong = correlation;
    } else if (frame[0] == ACK) {
        acks++;
    }
}

static void receive(void) {
    room(&in, 1 << 18);
    ssize_t got = read(line, in.data + in.used, in.room - in.used);
    if (got == 0) {
        fprintf(stderr, "blipmq: the broker hung up\n");
        exit(1);
    }
    if (got < 0) {
        if (errno == EAGAIN) return;
        fail("read");
    }
    in.used += got;
    size_t position = 0;
    while (in.used - position >= 4) {
        size_t length = at_be(in.data + position, 4);
        if (in.used - position < 4 + length) break;
        take(in.data + position + 4, length);
        position += 4 + length;
    }
    memmove(in.data, in.data + position, in.used - position);
    in.used -= position;
}

/* Send, and read meanwhile; then read until `pong` is there or `acks` are enough. */
static void exchange(const unsigned char *data, size_t size, uint64_t pong, long acks_wanted) {
    size_t sent = 0;
    while (sent < size || (pong && last_pong != pong) || acks < acks_wanted) {
        struct pollfd watched = {line, POLLIN | (sent < size ? POLLOUT : 0), 0};
        if (poll(&watched, 1, STALL_MS) <= 0) fail("nothing happens");
        if (watched.revents & POLLOUT) {
            ssize_t written = write(line, data + sent, size - sent);
            if (written > 0) sent += written;
            else if (errno != EAGAIN) fail("write");
        }
        if (watched.revents & (POLLIN | POLLHUP | POLLERR)) receive();
    }
}

static void connect_to(const char *host, const char *port, const char *key) {
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM}, *found;
    int yes = 1;
    struct bytes out = {0};
    if (getaddrinfo(host, port, &wanted, &found)) fail("address");
    line = socket(found->ai_family, SOCK_STREAM, 0);
    if (connect(line, found->ai_addr, found->ai_addrlen)) fail("connect");
    freeaddrinfo(found);
    setsockopt(line, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    fcntl(line, F_SETFL, O_NONBLOCK);
    head(&out, HELLO, 1, 2);
    number(&out, 1, 2);
    head(&out, AUTH, 2, 2 + strlen(key));
    number(&out, strlen(key), 2);
    text(&out, key, strlen(key));
    exchange(out.data, out.used, 0, 2);
    free(out.data);
}

static long publish(char **argument) {
    const char *topic = argument[0];
    int qos = atoi(argument[1]);
    size_t size = strtoul(argument[2], NULL, 10);
    long count = atol(argument[3]), fence = atol(argument[4]);
    size_t frame = 16 + strlen(topic) + size;
    long block = fence ? fence : (long)(BLOCK_BYTES / frame) + 1;
    uint64_t pings = (uint64_t)1 << 40;
    struct bytes out = {0}, ping = {0};
    char *message = malloc(size + 1);
    memset(message, 'x', size + 1);
    for (long place = 0; place < block; place++) {
        head(&out, PUBLISH, 1000 + place, 3 + strlen(topic) + size);
        number(&out, qos, 1);
        number(&out, strlen(topic), 2);
        text(&out, topic, strlen(topic));
        text(&out, message, size);
    }
    size_t messages = out.used;
    for (long left = count; left > 0; left -= block) {
        out.used = left < block ? left * frame : messages;
        if (fence) head(&out, PING, ++pings, 0);
        exchange(out.data, out.used, fence ? pings : 0, 0);
    }
    head(&ping, PING, ++pings, 0);
    exchange(ping.data, ping.used, pings, 0);
    return count;
}

static long deliver(char **argument) {
    uint64_t subscription = strtoull(argument[0], NULL, 10);
    int acknowledged = atoi(argument[1]);
    long count = atol(argument[2]), batch = atol(argument[3]);
    uint64_t pings = (uint64_t)1 << 40;
    struct bytes out = {0};
    while (delivered < count) {
        long before = delivered;
        out.used = tags_used = 0;
        for (long place = 0; place < batch; place++) {
            head(&out, POLL, 5000 + place, 8);
            number(&out, subscription, 8);
        }
        head(&out, PING, ++pings, 0);
        exchange(out.data, out.used, pings, 0);
        if (delivered == before) {
            fprintf(stderr, "blipmq: only %ld of %ld came\n", delivered, count);
            exit(1);
        }
        if (!acknowledged) continue;
        out.used = 0;
        for (size_t place = 0; place < tags_used; place++) {
            head(&out, ACK, tags[place], 8);
            number(&out, subscription, 8);
        }
        head(&out, PING, ++pings, 0);
        exchange(out.data, out.used, pings, 0);
    }
    return delivered;
}

int main(int count, char **argument) {
    if (count < 5) {
        fprintf(stderr, "blipmq HOST PORT KEY publish|deliver ...\n");
        return 2;
    }
    connect_to(argument[1], argument[2], argument[3]);
    int publishing = !strcmp(argument[4], "publish");
    if (count != (publishing ? 10 : 9)) {
        fprintf(stderr, "blipmq: %d arguments\n", count - 1);
        return 2;
    }
    double start = seconds();
    long messages = publishing ? publish(argument + 5) : deliver(argument + 5);
    double elapsed = seconds() - start;
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("{\"messages\": %ld, \"refused\": %ld, \"seconds\": %.6f, \"cpu_s\": %.6f}\n", messages,
           refused, elapsed,
           used.ru_utime.tv_sec + used.ru_stime.tv_sec +
               (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6);
    return 0;
}
