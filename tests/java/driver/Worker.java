package driver;

import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** The thread of one client: serves requests in order and lets the client work in between. */
final class Worker extends Thread {
    private static final long PAUSE_MS = 50;

    private final BlockingQueue<Request> waiting = new LinkedBlockingQueue<>();
    private final Callable<Client> opening;
    private final Answers answers;

    Worker(Request request, Callable<Client> opening, Answers answers) {
        super(request.client());
        this.opening = opening;
        this.answers = answers;
        setDaemon(true);
        waiting.add(request);
    }

    void submit(Request request) {
        waiting.add(request);
    }

    @Override
    public void run() {
        try {
            Client client = open();
            boolean worked = false;
            while (client != null) {
                Request request = waiting.poll(worked ? 0 : PAUSE_MS, TimeUnit.MILLISECONDS);
                if (request != null) {
                    answer(client, request);
                    if (request.what().equals("close")) {
                        return;
                    }
                }
                worked = client.idle();
            }
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    private Client open() throws InterruptedException {
        Request request = waiting.take();
        try {
            Client client = opening.call();
            answers.result(request, null);
            return client;
        } catch (Exception refused) {
            answers.failure(request, refused);
            return null;
        }
    }

    private void answer(Client client, Request request) {
        try {
            answers.result(request, client.serve(request));
        } catch (Exception failed) {
            answers.failure(request, failed);
        }
    }
}
