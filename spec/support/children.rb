# frozen_string_literal: true

# Child processes, forked and told apart from this one: a child neither runs the suite's
# hooks nor touches the connection that the suite administers its database with.
module Children
  Child = Struct.new(:pid, :reader) do
    # What the child's block returned; an exception in the child is raised here.
    def value(within: 30)
      unless reader.wait_readable(within)
        Process.kill(:KILL, pid)
        raise "child #{pid} still running after #{within} s"
      end

      kind, value = Marshal.load(reader.read) # rubocop:disable Security/MarshalLoad -- our own child wrote it
      raise "in the child: #{value}" if kind == :raised

      value
    ensure
      finish
    end

    def status
      value
      @status
    end

    private

    def finish
      reader.close
      _, @status = Process.wait2(pid)
    rescue Errno::ECHILD
      nil
    end
  end

  # Forks; the child runs the block on the implementation under test, hands back its value
  # and leaves by `exit_by`: :exit runs at_exit blocks and finalizers, :exit! nothing.
  def fork_child(exit_by: :exit!, &block)
    reader, writer = IO.pipe(binmode: true)
    pid = fork do
      reader.close
      SpecDatabase.forget
      writer.write(Marshal.dump(Children.outcome { implementation.use(&block) }))
      writer.close
      exit_by == :exit ? exit(true) : exit!(true)
    end
    writer.close
    Child.new(pid, reader)
  end

  def self.outcome
    [:returned, yield]
  rescue Exception => e # rubocop:disable Lint/RescueException -- reported to the parent whatever it is
    [:raised, "#{e.class}: #{e.message}\n#{e.backtrace&.first(5)&.join("\n")}"]
  end
end
