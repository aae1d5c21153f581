// Produces with one setting of the Go SDK, then consumes everything again.
//
// Arguments: broker address, topic, acks, compression, consumer mode, number of messages.
// Prints each payload that was consumed on a line of its own.
package main

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/cursus-io/cursus/sdk"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	address, topic, acks, compression, mode := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	count, err := strconv.Atoi(os.Args[6])
	check(err)

	publisher := sdk.NewDefaultPublisherConfig()
	publisher.BrokerAddrs = []string{address}
	publisher.Topic = topic
	publisher.Partitions = 2
	publisher.Acks = acks
	publisher.EnableIdempotence = acks == "all" || acks == "-1"
	publisher.CompressionType = compression
	producer, err := sdk.NewProducer(publisher)
	check(err)
	for number := 0; number < count; number++ {
		_, err = producer.Send(fmt.Sprintf("message-%d", number))
		check(err)
	}
	producer.Flush()
	producer.Close()

	subscriber := sdk.NewDefaultConsumerConfig()
	subscriber.BrokerAddrs = []string{address}
	subscriber.Topic = topic
	subscriber.GroupID = topic + "-group"
	subscriber.Mode = sdk.ConsumerMode(mode)
	consumer, err := sdk.NewConsumer(subscriber)
	check(err)

	var lock sync.Mutex
	seen := 0
	done := make(chan struct{})
	go func() {
		_ = consumer.Start(func(message sdk.Message) error {
			lock.Lock()
			defer lock.Unlock()
			fmt.Println(message.Payload)
			seen++
			if seen == count {
				close(done)
			}
			return nil
		})
	}()
	select {
	case <-done:
		time.Sleep(time.Second)
	case <-time.After(30 * time.Second):
		fmt.Fprintln(os.Stderr, "not everything came back")
		os.Exit(1)
	}
}
